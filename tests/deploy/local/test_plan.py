"""The process table: who holds which secret. Also what no child inherits from the person's shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local import environment, roles, secrets
from deploy.local.options import Options
from deploy.local.places import Home
from deploy.local.plan import Addresses, Plan
from deploy.local.process import Child
from deploy.local.valkey import USERS, Valkey

ROLE_OF = {"migrate": "saltroute_owner", "ingest": "saltroute_ingest"}
USER_OF = {"control": "control", "apply": "control", "ingest": "ingest", "router": "router"}


@pytest.fixture
def table(home: Home) -> dict[str, Child]:
    return _table(home)


def _table(home: Home, base: dict[str, str] | None = None, **settings: str) -> dict[str, Child]:
    """Every child of the product, by name; none is started. ``base`` is what the person's shell holds."""
    held = secrets.ensure(home.secrets)
    server = roles.Server.at("postgresql://admin@localhost/saltroute")
    valkey = Valkey(home, held.valkey_passwords())
    addresses = Addresses(
        database={role: (server.url(role), held.password_file(f"pg_{role}")) for role in roles.LOGIN_ROLES},
        valkey={user: (valkey.url(user), held.password_file(f"valkey_{user}")) for user in USERS},
        valkey_admin_url="",
    )
    options = Options.read({"SALTROUTE_HOME": str(home.root), **settings})
    plan = Plan(options, home, held, addresses, base=environment.inherited({"PATH": "/usr/bin", **(base or {})}))
    children = [service.child for group in plan.services() for service in group]
    return {child.name: child for child in [plan.migrate(), plan.manage("apply", "apply"), *children]}


def _holders(table: dict[str, Child], file: str) -> set[str]:
    return {name for name, child in table.items() if any(Path(value).name == file for value in child.env.values())}


def test_the_table_is_complete(table: dict[str, Child]) -> None:
    workers = {f"celery-{queue}" for queue in ("publish", "keys", "audit", "bulk")}
    assert set(table) == {"migrate", "apply", "fleet", "control", *workers, "celery-beat", "ingest", "router"}


def test_code_is_checked_once_a_start(table: dict[str, Child]) -> None:
    """By the migration, with the code that all of them run: checks take a third of a command's and of a worker's start."""
    workers = {name for name, child in table.items() if child.env.get("CELERY_SKIP_CHECKS")}
    assert workers == {f"celery-{queue}" for queue in ("publish", "keys", "audit", "bulk")}
    assert {name for name, child in table.items() if "--skip-checks" in child.argv} == {"apply"}


def test_several_routers_share_one_port_and_nothing_else(home: Home) -> None:
    table = _table(home, ROUTERS="3")
    assert "router" not in table
    routers = [table[f"router-{number}"] for number in (1, 2, 3)]
    assert {child.env["ROUTER_PORT"] for child in routers} == {"8080"}
    assert {child.env["ROUTER_REUSE_PORT"] for child in routers} == {"1"}
    assert [child.env["ROUTER_ID"] for child in routers] == ["router-1", "router-2", "router-3"]
    for own in ("ROUTER_INTERNAL_PORT", "SALTROUTE_STATE_DIR", "ROUTER_ID"):
        assert len({child.env[own] for child in routers}) == 3
    assert len({child.log for child in routers}) == 3
    assert "ROUTER_REUSE_PORT" not in _table(home)["router"].env  # a second router by mistake still finds the port taken


@pytest.mark.parametrize(
    ("file", "holders"),
    [
        ("root.key", {"router", "celery-keys"}),
        ("records.key", {"router", "ingest"}),
        ("publish.pub", {"router"}),
        ("evidence.key", {"celery-audit"}),
        ("signin.key", {"control"}),
        ("pg_saltroute_owner.password", {"migrate"}),
        ("pg_saltroute_ingest.password", {"ingest"}),
        ("valkey_router.password", {"router"}),
        ("valkey_ingest.password", {"ingest"}),
        ("valkey_control.password", {"control", "apply"}),
        ("pg_pg_admin.password", set()),
        ("valkey_admin.password", set()),
    ],
)
def test_a_secret_reaches_only_who_needs_it(table: dict[str, Child], file: str, holders: set[str]) -> None:
    assert _holders(table, file) == holders


def test_a_former_root_key_goes_to_the_same_two(home: Home) -> None:
    """While a rotation of the root goes on: named second, to the router and the keys worker alone."""
    held = secrets.ensure(home.secrets)
    held.file("root.former.key").write_bytes(b"f" * 32)
    table = _table(home)
    both = f"file:{held.file('root.key')},file:{held.file('root.former.key')}"
    assert {name for name, child in table.items() if "SALTROUTE_ROOT" in child.env} == {"router", "celery-keys"}
    assert {table[name].env["SALTROUTE_ROOT"] for name in ("router", "celery-keys")} == {both}


def test_the_web_holds_the_sign_in_key_and_no_root_key(home: Home) -> None:
    """The only process that opens second factors; a former key of theirs goes to it too, behind the current one, and to nobody else."""
    held = secrets.ensure(home.secrets)
    held.file("signin.former.key").write_bytes(b"f" * 32)
    table = _table(home)
    assert {name for name, child in table.items() if "SALTROUTE_SIGN_IN_KEY_FILES" in child.env} == {"control"}
    assert table["control"].env["SALTROUTE_SIGN_IN_KEY_FILES"] == f"{held.file('signin.key')},{held.file('signin.former.key')}"
    assert held.file("signin.key").stat().st_mode & 0o777 == 0o600
    assert _holders(table, "root.key").isdisjoint({"control"})
    secret_files = {Path(value).name for value in table["control"].env.values() if str(home.secrets) in value and "," not in value}
    assert secret_files == {"django.key", "seal.pub", "publish.key", "evidence.pub", "pg_saltroute_app.password", "valkey_control.password"}


def test_a_sign_in_key_of_the_shell_reaches_nobody() -> None:
    """It would be inherited by every child."""
    assert "SALTROUTE_SIGN_IN_KEY_FILES" not in environment.inherited({"SALTROUTE_SIGN_IN_KEY_FILES": "/x", "PATH": "/usr/bin"})


def test_mail_goes_into_files_or_to_the_named_server(home: Home) -> None:
    """The web and the worker that sends agree; a server's password is a file."""
    assert {child.env.get("SALTROUTE_MAIL_DIR") for name, child in _table(home).items() if name in ("control", "celery-bulk")} == {str(home.mail)}
    secrets.ensure(home.secrets).password_file("smtp").write_text("secret")
    table = _table(home, base={"SALTROUTE_SMTP_HOST": "mail.example"})
    for name in ("control", "celery-bulk"):
        assert "SALTROUTE_MAIL_DIR" not in table[name].env
        assert table[name].env["SALTROUTE_SMTP_PASSWORD_FILE"].endswith("smtp.password")


def test_the_router_and_the_fleet_know_no_database_and_no_publishing_key(table: dict[str, Child]) -> None:
    for name in ("router", "fleet"):
        assert not [key for key in table[name].env if key.startswith("DATABASE")]
    assert _holders(table, "publish.key").isdisjoint({"router", "fleet", "ingest", "migrate"})
    assert not [key for key in table["fleet"].env if key.endswith("_FILE")]


def test_no_environment_and_no_command_line_holds_a_secret(table: dict[str, Child], home: Home) -> None:
    values = [path.read_bytes().strip().decode(errors="ignore") for path in home.secrets.glob("*.password")]
    assert values
    for child in table.values():
        shown = "\n".join([*child.argv, *child.env.values()])
        assert not [value for value in values if value in shown]


def test_children_inherit_settings_and_no_secrets() -> None:
    shell = {
        "PATH": "/usr/bin",
        "SALTROUTE_LOG_LEVEL": "debug",
        "INGEST_CLAIM_IDLE_S": "5",
        "SALTROUTE_ROOT_KEY_FILE": "/elsewhere/root.key",
        "SALTROUTE_ROOT": "env:ROOT",
        "DATABASE_URL": "postgresql://admin:secret@host/x",
        "VALKEY_URL": "redis://:secret@host",
        "CELERY_BROKER_URL": "redis://:secret@host",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "OPENAI_API_KEY": "secret",
    }
    assert environment.inherited(shell) == {
        "PATH": "/usr/bin",
        "SALTROUTE_LOG_LEVEL": "debug",
        "INGEST_CLAIM_IDLE_S": "5",
        "PYTHONUNBUFFERED": "1",
    }


def test_a_password_in_a_url_moves_to_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "p"
    assert environment.password_apart("redis://u:s3cret@host:6379/0", file) == ("redis://u:{password}@host:6379/0", file)
    assert file.read_text() == "s3cret"
    assert file.stat().st_mode & 0o777 == 0o600
    assert environment.password_apart("redis://host:6379/0", file) == ("redis://host:6379/0", None)
