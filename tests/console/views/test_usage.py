"""The page of usage and its file."""

from __future__ import annotations

import re
import uuid

import pytest

from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db


def _figures(page: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", page))


def test_sums_and_lines_of_the_tenant_s_own_requests(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    rows.store(as_owner, made, *[rows.record(made, prompt_tokens=1000, cached_tokens=600, prefill_tokens_per_s=3000.0) for _ in range(3)])
    rows.store(as_owner, made, rows.record(made, key_id=uuid.uuid4(), prompt_tokens=1000, cached_tokens=0))
    rows.store(as_owner, town.birch, rows.record(town.birch))
    page = town.owner.get("/t/acorn/usage").content.decode()
    figures = _figures(page)
    assert (figures["Requests"], figures["Input tokens"], figures["Cached tokens"]) == ("4", "4,000", "1,800")
    assert "learned prefill rate" in page
    assert re.search(r'data-label="Key">\s*<span class="muted">deleted \(', page)
    assert page.count('data-label="Requests"') == 2


def test_the_file_has_the_same_lines(town: Town, as_owner: AsOwner) -> None:
    rows.store(as_owner, town.acorn, rows.record(town.acorn, prompt_tokens=1234))
    answer = town.owner.get("/t/acorn/usage/export?by=endpoint")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert ",1,1234," in answer.content.decode()


@pytest.mark.parametrize("query", ["since=x&until=y", "since=2026-02-30", "since=2999-01-01", "since=1900-01-01", "until=0001-01-02", "by=%3Cimg%3E"])
def test_an_odd_link_still_opens(town: Town, query: str) -> None:
    assert town.owner.get(f"/t/acorn/usage?{query}").status_code == 200


def test_a_stranger_sees_no_page(town: Town) -> None:
    for path in ("usage", "usage/export"):
        assert town.stranger.get(f"/t/acorn/{path}").status_code == 404
