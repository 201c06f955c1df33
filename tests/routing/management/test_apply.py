"""``manage.py apply``."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import yaml
from django.core.management import CommandError, call_command

from routing.models import Endpoint, Pool, Replica
from tenants.core.api_key import digest
from tenants.models import ApiKey, Tenant
from tenants.queries import all_tenants, tenant_id_of
from tenants.scoping import tenant_scope

pytestmark = pytest.mark.django_db

DEMO = Path(__file__).parents[3] / "deploy" / "demo" / "demo.yaml"
Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACME_APP_KEY", "ACME_SUPPORT_KEY", "ACME_EMEA_KEY", "ACME_RESEARCH_KEY", "GLOBEX_APP_KEY", "GLOBEX_RESEARCH_KEY", "ACME_KEY"):
        monkeypatch.setenv(name, f"sk-sr-{name.lower().replace('_', '-')}-0123456789")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a declaration file."""

    def put(text: str) -> Path:
        file = tmp_path / "declared.yaml"
        file.write_text(text)
        return file

    return put


def run(file: Path, *options: str) -> str:
    out = StringIO()
    call_command("apply", "-f", str(file), *options, stdout=out)
    return out.getvalue()


def refused(file: Path, *options: str) -> list[str]:
    """The lines of the refusal, without the file's folder."""
    with pytest.raises(CommandError) as error:
        run(file, *options)
    lines = str(error.value).replace(str(file), file.name).splitlines()
    assert lines[-1] == "nothing was changed"
    return lines[:-1]


def tenant_id(slug: str):  # type: ignore[no-untyped-def]  # UUID or None; the tests that use it know which
    return tenant_id_of(slug)


def versions() -> dict[str, int]:
    return {ref.slug: ref.config_version for ref in all_tenants()}


def test_the_demo_applies_and_a_second_time_changes_nothing() -> None:
    """Idempotent: no output but that, and no version raised."""
    first = run(DEMO)
    assert "+ tenant acme" in first
    assert "+ acme: replica llama-private/private-1" in first
    assert "+ platform: grant shared-gpu to globex" in first
    before = versions()
    assert run(DEMO) == "no changes\n"
    assert versions() == before
    with tenant_scope(tenant_id("acme")):
        endpoint = Endpoint.objects.select_related("routing_policy__policy", "grant").get(name="llama-chat")
        assert endpoint.routing_policy.policy.name == "llama-chat"
        assert endpoint.request_context == ["repo"]
        assert ApiKey.objects.filter(digest=digest("sk-sr-acme-app-key-0123456789")).exists()


def test_secrets_are_not_printed() -> None:
    assert "0123456789" not in run(DEMO)
