"""Every page of the console in a real browser, from the resolver: light and wide, dark and narrow, by keyboard, and through axe's eyes.

A page that is added later is walked without a word here. One that needs an object of a new kind gets one in ``furnished``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from django.urls import URLPattern
from django.utils import timezone

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from tests.console.rows import AsOwner, Town

# Answers that are no page: files, images, ways to another page, and parts of pages, which are walked with the page that holds them.
NO_PAGE = {
    "applied",
    "audit_report",
    "usage_export",
    "endpoint_capture_export",
    "trace_job_file",
    "trace_job_plot",
    "playground_decision",
    "overview_replicas",
    "endpoint_by_name",
    "policy_check",
    "trace_ask",
}
# Reached on a way, not by an address: signing in and out, links from a mail. test_people.py goes those ways.
ON_A_WAY = {"home", "sign_out", "sign_in_code", "reset", "reset_new", "invitation", "invitation_accept"}


@pytest.fixture
def furnished(town: Town, as_owner: AsOwner) -> Callable[[bool], dict[str, str]]:
    """Paths by name, of every page that answers a GET: a tenant's own, or (``True``) those of persons and of the platform."""
    from console import urls
    from console.access import PersonPage, TenantPage
    from routing.check_models import ReplicaCheck
    from routing.models import TraceJob
    from tenants.scoping import tenant_scope
    from tests.console import rows
    from tests.console.test_walls import _path
    from tests.console.views.test_replica_checks import FOUND

    made = town.acorn
    decision = rows.record(made, started_at=rows.ago(minutes=2))
    rows.store(as_owner, made, decision, *(rows.record(made, started_at=rows.ago(minutes=number)) for number in range(3, 20)))
    rows.audit_run(made, id=decision.id)
    with tenant_scope(made.tenant_id):
        shown_at = timezone.now()
        checked = {"name": "c", "url": "http://127.0.0.1:9009", "engine": "vllm", "state": "done", "report": FOUND, "shown_at": shown_at}
        ReplicaCheck.objects.create(id=decision.id, tenant_id=made.tenant_id, pool_id=made.pool_id, **checked)
        asked = {"kind": "analyze", "state": "failed", "input_name": "day.jsonl", "parameters": {}, "error": "The trace has no times."}
        TraceJob.objects.create(id=decision.id, tenant_id=made.tenant_id, **asked)
    stored: UUID = decision.id

    def paths(outside: bool) -> dict[str, str]:
        found = {}
        for pattern in urls.urlpatterns:
            if not isinstance(pattern, URLPattern) or pattern.name in ON_A_WAY:
                continue
            view = getattr(pattern.callback, "view_class", None)
            tenants_own = view is not None and issubclass(view, TenantPage)
            offers_get = view is None or "get" in dir(view)
            if offers_get and tenants_own != outside and (tenants_own or view is None or issubclass(view, PersonPage)):
                found[str(pattern.name)] = _path(pattern, made, stored)
        return found

    return paths


def _is_page(client: object, path: str) -> bool:
    response = client.get(path)  # type: ignore[attr-defined]  # Django's test client
    return response.status_code == 200 and response.headers["Content-Type"].startswith("text/html") and b"<html" in response.content


def test_every_page_of_a_tenant_as_its_owner(
    town: Town, furnished: Callable[[bool], dict[str, str]], signed_in: Callable[..., BrowserContext]
) -> None:
    """No complaint of scripts or policy, nothing serious for axe in light and dark, no sideways scrolling at 360 px, no table beyond its card
    and no word in two on a wide screen, all reachable by keyboard."""
    paths = furnished(False)
    absent = {name for name, path in paths.items() if not _is_page(town.owner, path)}
    assert absent <= NO_PAGE, absent - NO_PAGE
    _walk(Visit.of(signed_in(town.owner)), [path for name, path in paths.items() if name not in absent], at_least=35)


def test_pages_of_persons_and_of_the_platform(
    town: Town, furnished: Callable[[bool], dict[str, str]], signed_in: Callable[..., BrowserContext]
) -> None:
    """The same for an operator; and for somebody who is not signed in the pages before that."""
    paths = furnished(True)
    before = {name: paths.pop(name) for name in ("sign_in", "reset_ask")}
    walked = [path for name, path in paths.items() if _is_page(town.operator, path)]
    _walk(Visit.of(signed_in(town.operator)), walked, at_least=9)
    _walk(Visit.of(signed_in(None)), list(before.values()), at_least=2)


def test_viewer_and_stranger(town: Town, furnished: Callable[[bool], dict[str, str]], signed_in: Callable[..., BrowserContext]) -> None:
    """What a viewer gets of each page (many say that the role does not allow it) holds as well; a stranger gets the page that nothing is there."""
    viewer, stranger = Visit.of(signed_in(town.viewer)), Visit.of(signed_in(town.stranger))
    for visit in (viewer, stranger):
        visit.narrow_and_dark()
    wrong: dict[str, list[str]] = {}
    statuses = set()
    for path in furnished(False).values():
        if not _is_page(town.owner, path):
            continue  # the first test says which those may be
        statuses.add(viewer.open(path))
        wrong[f"viewer {path}"] = [one for one in viewer.complaints() if "status of 403" not in one] + viewer.sideways()
        assert stranger.open(path) == 404, path
        wrong[f"stranger {path}"] = stranger.complaints() + stranger.sideways()
    assert statuses == {200, 403}
    assert {path: found for path, found in wrong.items() if found} == {}
    assert stranger.axe() == []


def _walk(visit: Visit, paths: list[str], *, at_least: int) -> None:
    wrong: dict[str, list[str]] = {}
    assert len(paths) >= at_least, paths
    for path in paths:
        visit.wide_and_light()
        assert visit.open(path) == 200, path
        found = visit.axe() + visit.keyboard() + visit.sideways() + visit.tabs() + visit.broken() + visit.beyond()
        visit.narrow_and_dark()
        found += [f"dark, {one}" for one in visit.axe(only=("color-contrast",))] + visit.sideways()
        wrong[path] = visit.complaints() + found
    report = {path: found for path, found in wrong.items() if found}
    assert report == {}, "\n".join(f"{path}: {one}" for path, found in report.items() for one in found)


def test_what_is_looked_for_is_found(signed_in: Callable[..., BrowserContext]) -> None:
    """The control: a page with each fault, served where the policy holds, is complained of by each look."""
    visit = Visit.of(signed_in(None))
    visit.open("/login")
    visit.page.evaluate(
        """() => { document.body.innerHTML = '<main><img src="/x.png"><p style="color:#ccc">pale</p><input><a href="/" tabindex="-1">a</a>'
            + '<button>b</button><div id="wide">w</div></main>'; document.querySelector('#wide').style.width = '3000px';
            document.querySelector('p').style.color = '#ddd'; document.querySelector('p').style.background = '#fff';
            document.querySelector('button').style.outline = 'none'; }"""
    )
    assert {"image-alt", "label", "color-contrast"} <= {one.split(":")[0] for one in visit.axe()}
    assert {one.split(":")[0] for one in visit.keyboard()} == {"passed over by Tab", "focus unseen"}
    assert visit.sideways() != []
    assert any("Content Security Policy" in one for one in visit.complaints())  # the style attribute
