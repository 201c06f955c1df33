"""``manage.py createtoken``."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.tenants.houses import Api, House

pytestmark = pytest.mark.django_db


def _run(*arguments: str) -> str:
    out = StringIO()
    call_command("createtoken", *arguments, stdout=out)
    return out.getvalue()


def test_a_platform_token_is_printed_alone_and_works(acorn: House) -> None:
    """One line; it creates a tenant and acts in others. The platform's tenant is made on the way."""
    printed = _run("bootstrap")
    assert printed.count("\n") == 1
    api = Api(token=printed.strip())
    assert api.post("tenants", {"slug": "elm", "name": "Elm"}).status_code == 201
    assert api.get("keys", X_Saltroute_Tenant="acorn").status_code == 200
    assert api.get("tokens/bootstrap").json()["created_by"] == "createtoken"


def test_a_tenants_token_has_its_role_and_no_more(acorn: House) -> None:
    """It expires when asked to."""
    api = Api(token=_run("ci", "--tenant", "acorn", "--role", "operator", "--days", "7").strip())
    me = api.get("me").json()
    assert (me["platform"], [(seat["slug"], seat["role"]) for seat in me["tenants"]]) == (False, [("acorn", "operator")])
    assert acorn.api().get("tokens/ci").json()["expires_at"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ci", "--tenant", "acorn"], "go together"),
        (["ci", "--role", "viewer"], "go together"),
        (["ci", "--tenant", "nowhere", "--role", "viewer"], "no tenant"),
        (["owner-token", "--tenant", "acorn", "--role", "viewer"], "in use"),
        ([" ci", "--tenant", "acorn", "--role", "viewer"], "White space"),
        (["ci", "--days", "0"], "1 to 3650"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(acorn: House, arguments: list[str], message: str) -> None:
    """And issues nothing."""
    with pytest.raises(CommandError, match=message):
        _run(*arguments)
    with acorn.scope():
        assert len(acorn.log("control_token.issue")) == 4


def test_the_platform_is_not_named_as_a_tenant(platform: Api) -> None:
    """There is one way to its tokens."""
    with pytest.raises(CommandError, match="leave --tenant"):
        _run("x", "--tenant", "platform", "--role", "owner")


def test_a_token_in_a_file_is_kept_while_it_is_good(acorn: House, tmp_path: Path) -> None:
    """Written privately and not shown; a repeat changes nothing; a revoked one is replaced."""
    file = tmp_path / "token"
    assert _run("first", "--tenant", "acorn", "--role", "viewer", "--out", str(file)) == ""
    token = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert Api(token=token).get("keys").status_code == 200
    _run("second", "--tenant", "acorn", "--role", "viewer", "--out", str(file))
    assert file.read_text().strip() == token
    assert acorn.api().delete("tokens/first").status_code in (200, 204)
    _run("third", "--tenant", "acorn", "--role", "viewer", "--out", str(file))
    assert file.read_text().strip() != token
