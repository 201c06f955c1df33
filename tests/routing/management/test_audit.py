"""``manage.py audit``: run through a real router, report, verify."""

from __future__ import annotations

import io
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from tests.routing.services.audits.conftest import world  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("audit", *arguments, stdout=out)
    return out.getvalue()


def test_run_report_verify(world: World, tmp_path: Path, settings: Any) -> None:  # noqa: F811 - the fixture
    """The rows with their verdicts at the terminal, then the file, then its verification; a changed byte is refused."""
    shown = command("run", "--endpoint", "chat", "--tenant", "acorn", "--replica", "a", "--repeat", "2")
    assert "gpu/a: PASS, now isolated" in shown
    assert "two_salts" in shown
    assert "rows 1, 2, 3" in shown
    assert "failure rate at most" in shown
    run_id = shown.split("   run ")[1].split()[0]
    file = tmp_path / "report.json"
    assert "pass" in command("report", "--run", run_id, "-o", str(file))
    ours = settings.EVIDENCE_PUBLIC_KEY
    assert f"valid: signed with this installation's key {ours.hex()}" in command("verify", str(file))
    key = tmp_path / "evidence.pub"
    key.write_text(settings.EVIDENCE_PUBLIC_KEY.hex() + "\n")
    assert f"valid: signed with the key given, {ours.hex()}" in command("verify", str(file), "--key", str(key))
    settings.EVIDENCE_PUBLIC_KEY = None
    assert f"valid: signed with the key that it names itself, {ours.hex()}; hold that against" in command("verify", str(file))
    settings.EVIDENCE_PUBLIC_KEY = ours
    key.write_bytes(bytes(32))
    with pytest.raises(CommandError, match="another key"):
        command("verify", str(file), "--key", str(key))
    changed = json.loads(file.read_bytes())
    changed["evidence"]["negative_probes"] += 1
    file.write_text(json.dumps(changed))
    with pytest.raises(CommandError, match="NOT VALID"):
        command("verify", str(file))


def test_a_broken_engine_makes_it_fail_and_name_the_row(world: World, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811 - the fixture
    world.rig.mode(salt_mode="truncate_salt")
    out = io.StringIO()
    with pytest.raises(CommandError, match="not every audit passed"):
        call_command("audit", "run", "--endpoint", "chat", "--repeat", "1", stdout=out)
    assert "gpu/a: FAIL, now quarantined" in out.getvalue()
    (line,) = [line for line in out.getvalue().splitlines() if "part_of_salt" in line]
    assert "fail" in line
    assert "rows 23" in line


def test_while_an_audit_runs_another_is_refused_and_does_not_wait(world: World) -> None:  # noqa: F811 - the fixture
    from routing.models import AuditRun, Replica
    from tenants.scoping import tenant_scope

    def busy(until: datetime | None) -> None:
        with tenant_scope(world.tenant.id):
            Replica.objects.filter(id=world.replica_id).update(audit_busy_until=until)

    busy(timezone.now() + timedelta(minutes=5))
    out = io.StringIO()
    with pytest.raises(CommandError, match="not every audit passed"):
        call_command("audit", "run", "--endpoint", "chat", "--repeat", "1", stdout=out)
    assert "gpu/a: refused: an audit of this replica is running" in out.getvalue()
    with tenant_scope(world.tenant.id):
        assert [run.state for run in AuditRun.objects.all()] == ["refused"]
    busy(None)
    assert "gpu/a: PASS" in command("run", "--endpoint", "chat", "--repeat", "1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--endpoint", "nothing"),
        ("run", "--endpoint", "chat", "--tenant", "nobody"),
        ("run", "--endpoint", "chat", "--replica", "b"),
        ("run", "--endpoint", "chat", "--repeat", "5000"),
        ("report", "--run", "00000000-0000-4000-8000-000000000000", "-o", "x"),
        ("verify", "/nowhere/report.json"),
    ],
)
def test_mistakes_are_said(world: World, arguments: tuple[str, ...]) -> None:  # noqa: F811 - the fixture
    with pytest.raises(CommandError):
        command(*arguments)
