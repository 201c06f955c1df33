"""A candidate policy in a declaration: begun, changed and ended by ``apply``, and written by ``export``."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from routing import queries
from routing.models import Endpoint
from routing.services import trials
from tenants.queries import tenant_id_of
from tenants.scoping import tenant_scope
from tests.routing.services.rows import ACTOR

pytestmark = pytest.mark.django_db


def document(**endpoint: Any) -> dict[str, Any]:
    replicas = [{"name": "a", "url": "http://127.0.0.1:9301"}]
    chat = {"name": "chat", "model": {"name": "m", "revision": "r1"}, "replicas": replicas, "isolation": "declared", **endpoint}
    return {"tenants": [{"slug": "acme", "endpoints": [chat]}]}


def apply(tmp_path: Path, content: dict[str, Any], *options: str) -> str:
    file, out = tmp_path / "declared.yaml", StringIO()
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    call_command("apply", "-f", str(file), *options, stdout=out)
    return out.getvalue()


def refused(tmp_path: Path, content: dict[str, Any]) -> str:
    file, err = tmp_path / "declared.yaml", StringIO()
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(SystemExit):
        call_command("apply", "-f", str(file), stdout=StringIO(), stderr=err)
    return err.getvalue()


def there() -> Endpoint:
    tenant_id = tenant_id_of("acme")
    assert tenant_id is not None
    with tenant_scope(tenant_id):
        return queries.endpoint(tenant_id, "chat")


def exported() -> dict[str, Any]:
    out = StringIO()
    call_command("export", stdout=out)
    found: dict[str, Any] = yaml.safe_load(out.getvalue())
    return found


def test_a_trial_is_declared_changed_and_ended(tmp_path: Path) -> None:
    """In the diff, in the rows, and not again when nothing differs."""
    tried = {"policy": {"policy": "round_robin"}, "share": 0.1}
    first = apply(tmp_path, document(candidate=tried))
    assert "candidate: chat~candidate v1" in first
    assert "canary_share: 0.1" in first
    row = there()
    assert row.candidate_policy is not None
    assert (row.routing_policy.policy.name, row.candidate_policy.spec, row.canary_share) == ("chat", {"policy": "round_robin"}, 0.1)
    assert apply(tmp_path, document(candidate=tried)) == "no changes\n"
    assert apply(tmp_path, document(candidate=tried), "--prune") == "no changes\n"
    more = apply(tmp_path, document(candidate={**tried, "share": 0.5}))
    assert "canary_share: 0.1 -> 0.5" in more
    assert "candidate: chat~candidate v1 -> none" in apply(tmp_path, document())
    row = there()
    assert (row.candidate_policy, row.canary_share, row.previous_policy) == (None, 0.0, None)
    assert "- acme: routing policy chat~candidate" in apply(tmp_path, document(), "--prune")


def test_an_export_with_a_trial_comes_back(tmp_path: Path) -> None:
    """Inline where it was declared so, else by name and version."""
    for candidate in ({"policy": {"policy": "round_robin"}, "share": 0.25}, {"policy": {"name": "other", "version": 1}, "share": 0.0}):
        content = document(candidate=candidate)
        content["tenants"][0]["routing_policies"] = [{"name": "other", "spec": {"policy": "least_outstanding"}}]
        apply(tmp_path, content, "--prune")
        written = exported()
        assert written["tenants"][0]["endpoints"][0]["candidate"] == candidate
        assert apply(tmp_path, written, "--prune", "--prune-tenants") == "no changes\n"


def test_declaring_the_candidate_live_can_be_rolled_back(tmp_path: Path) -> None:
    content = document(candidate={"policy": "q"}, routing_policy="p")
    content["tenants"][0]["routing_policies"] = [
        {"name": name, "spec": {"policy": policy}} for name, policy in (("p", "ettft"), ("q", "round_robin"))
    ]
    apply(tmp_path, content)
    del content["tenants"][0]["endpoints"][0]["candidate"]
    content["tenants"][0]["endpoints"][0]["routing_policy"] = "q"
    apply(tmp_path, content)
    row = there()
    assert row.previous_policy is not None
    assert (row.routing_policy.policy.name, row.candidate_policy, row.previous_policy.policy.name) == ("q", None, "p")
    with tenant_scope(row.tenant_id):
        assert trials.roll_back(tenant_id=row.tenant_id, actor=ACTOR, endpoint_id=row.id).routing_policy.policy.name == "p"


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ({"policy": {"policy": "magic"}}, "candidate.policy.policy: Unknown policy"),
        ({"policy": "nobody"}, "candidate.policy: There is no routing policy of this name"),
        ({"policy": "round_robin"}, "candidate.policy: There is no routing policy of this name. To route by round_robin write it as a document"),
        ({"policy": {"policy": "round_robin"}, "share": 1.5}, "candidate.share: must be a number from 0 to 1"),
        ({"policy": {"policy": "round_robin"}, "share": "half"}, "candidate.share: must be a number"),
        ({"share": 0.5}, "candidate.policy: is required"),
        ({"policy": "p", "since": "today"}, "candidate.since: is not known here"),
        ({"policy": "p"}, "candidate.policy: The endpoint runs this version already"),
        ("p", "candidate: must be a mapping"),
    ],
)
def test_what_cannot_be_tried_is_refused_by_its_place(tmp_path: Path, candidate: Any, said: str) -> None:
    content = document(candidate=candidate, routing_policy="p")
    content["tenants"][0]["routing_policies"] = [{"name": "p", "spec": {"policy": "ettft"}}]
    assert f"tenants[0].endpoints[0].{said}" in refused(tmp_path, content)
    assert tenant_id_of("acme") is None
