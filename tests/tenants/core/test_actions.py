"""Who may do what, asked where changes are recorded: each action against each role, and no action of the code forgotten."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenants
from tenants.core import actions
from tenants.core.roles import Permission, Role, permissions

ROOT = Path(tenants.__file__).parent.parent
# The least role for each change; the platform's are no role's.
LEAST = {
    "viewer": ["request.denied", "account.rename", "invitation.accept", "sign_in.success", "password_reset.used", "session.ended"],
    "operator": [
        "endpoint.rotate_epoch", "endpoint.trial", "endpoint.promote", "endpoint.rollback", "endpoint.update", "replica.update", "scope.raise",
        "routing_policy.create", "slo_policy.delete", "audit.order", "adapter.reload", "trace_file.store", "something.new",
    ],
    "admin": [
        "member.add", "member.change_role", "member.remove", "invitation.create", "invitation.revoke", "control_token.issue", "control_token.revoke",
        "api_key.issue", "api_key.revoke", "api_key.rotate", "scope.create", "scope.delete", "model.create", "adapter.update", "artifact.store",
        "pool.delete", "replica.create", "replica.delete", "endpoint.create", "endpoint.delete", "webhook.rotate_secret", "records.keep", "quota.set",
    ],
    "owner": ["tenant.require_second_factor"],
    "": ["tenant.create", "tenant.rename", "tenant.suspend", "tenant.resume", "tenant.delete", "pool_grant.create", "pool_grant.delete"],
}  # fmt: skip


@pytest.mark.parametrize(("least", "action"), [(least, action) for least, found in LEAST.items() for action in found])
def test_an_action_is_for_its_role_and_those_above(least: str, action: str) -> None:
    """A platform operator may do all of them."""
    allowed = {role for role in Role if actions.needed(action) in permissions(role)}
    ranked = list(Role)
    assert allowed == (set(ranked[ranked.index(Role(least)) :]) if least else set())
    assert actions.needed(action) in permissions(Role.VIEWER, platform_operator=True)


def test_what_is_not_listed_is_not_for_viewers() -> None:
    assert actions.needed("something.new") is Permission.OPERATE


def _recorded() -> Iterator[str]:
    """Every text that looks like an action in the services."""
    for file in [*ROOT.glob("*/services/**/*.py"), *ROOT.glob("*/tasks.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                yield from (
                    value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str) and _is_action(value.value)
                )


def _is_action(text: str) -> bool:
    noun, dot, verb = text.partition(".")
    return bool(dot) and noun.replace("_", "").isalpha() and verb.replace("_", "").isalpha() and text.islower()


def test_what_configures_or_names_people_is_listed() -> None:
    """An action whose verb makes, removes or issues something is not left to the rule for the rest, but for those named here."""
    operated = {"routing_policy", "slo_policy", "trace_file", "trace_job", "key_operation", "tenant_key"}
    found = {action for action in _recorded() if action.partition(".")[2] in ("create", "delete", "issue", "revoke", "add", "remove")}
    assert len(found) >= 20
    assert {action for action in found if actions.needed(action) is Permission.OPERATE and action.partition(".")[0] not in operated} == set()
