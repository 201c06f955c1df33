"""``manage.py apply`` is the platform operator's own and says why an address was refused. What tenants hear: tests/routing/api/test_replicas.py."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from routing.outbound.addresses import MALFORMED, UrlRefused, base_url, check_url
from routing.services import replicas
from routing.services.declarations import addresses
from tests.routing.management.applying import complaints

pytestmark = pytest.mark.django_db


def _apply(file: Path, *replicas_of: tuple[str, str]) -> list[str]:
    """Declare one tenant with one replica for each pair of slug and address; the lines on standard error."""
    tenants = (f'  - {{slug: {slug}, pools: [{{name: p, replicas: [{{name: a, url: "{url}"}}]}}]}}\n' for slug, url in replicas_of)
    file.write_text("tenants:\n" + "".join(tenants))
    return complaints(file)


@pytest.mark.parametrize("url", ["http://10.0.0.5:8000", "http://169.254.169.254", "http://metadata.google.internal"])
def test_an_inner_address_is_refused_with_the_setting_that_decides(tmp_path: Path, settings: Any, url: str) -> None:
    """By name, with the value that this command has; the range that names it lets it in."""
    lines = _apply(tmp_path / "f.yaml", ("mine", url))
    assert lines[0].startswith("f.yaml:2: tenants[0].pools[0].replicas[0].url: This address is on loopback, private")
    assert "SALTROUTE_ALLOWED_RANGES (here: 127.0.0.0/8) does not name its range" in lines[0]
    settings.ALLOWED_RANGES = ()
    assert "(here: not set)" in _apply(tmp_path / "f.yaml", ("mine", url))[0]
    settings.ALLOWED_RANGES = ("10.0.0.0/8",)
    assert _apply(tmp_path / "f.yaml", ("mine", "http://10.0.0.5:8000")) == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("10.0.0.5:8000", "it begins with neither http:// nor https://"),
        ("ftp://good.example", "it begins with neither http:// nor https://"),
        ("http://good.example?x=1", "it has a query or a fragment, and a base URL has neither"),
        ("http://good.example/ a", "it holds characters that no base URL has, is too long, or is no URL"),
        ("http://ann@good.example", "it holds a user name; what an engine asks for goes into credential"),
        ("http://good.example:22", "its port is no number up to 65535, or is below 1024 and neither 80 nor 443"),
        ("http://good.example/a/../b", "its path holds dot segments or odd characters"),
        ("http://300.1.1.1", "its host is neither a name nor an address"),
    ],
)
def test_a_malformed_address_is_told_what_is_wrong(tmp_path: Path, url: str, why: str) -> None:
    assert _apply(tmp_path / "f.yaml", ("mine", url))[0].endswith(f"replicas[0].url: This address cannot be used: {why}.")


def test_an_address_of_another_tenant_is_said_to_be_one(tmp_path: Path) -> None:
    """The operator has both files; the first tenant's is taken."""
    assert _apply(tmp_path / "f.yaml", ("first", "http://127.0.0.1:9001")) == []
    lines = _apply(tmp_path / "f.yaml", ("second", "http://127.0.0.1:9001/other"))
    assert lines[0].endswith("replicas[0].url: Another tenant, or the platform, has registered an engine at this host and port.")


def test_a_socket_of_events_is_told_its_reason_at_its_own_field(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text('tenants: [{slug: m, pools: [{name: p, replicas: [{name: a, url: "http://8.8.8.8", kv_events: {endpoint: "tcp://*:5557"}}]}]}]')
    err = StringIO()
    with pytest.raises(SystemExit):
        call_command("apply", "-f", str(file), stderr=err)
    assert "replicas[0].kv_events.endpoint: * is where an engine listens" in err.getvalue()


def test_every_reason_has_words() -> None:
    """Of the code's own reasons none falls back to the text for tenants; an unknown one does."""
    reasons = set()
    texts = (
        "x y",
        "ftp://a.example",
        "http://a@b.example",
        "http://",
        "http://a.example:22",
        "http://a.example/..",
        "http://a.example?",
        "http://a.example/v1/chat",
        "http://10.0.0.1",
    )
    for url in texts:
        with pytest.raises(UrlRefused) as refused:
            check_url(base_url(url), ())
        reasons.add(refused.value.reason)
    assert reasons == {*MALFORMED, "address"}
    told = [addresses.why(reason, ()) for reason in (*reasons, replicas.FOREIGN)]
    assert len(set(told)) == len(MALFORMED) + 2
    assert replicas.ADDRESS_REFUSED not in told
    assert addresses.why("else", ()) == replicas.ADDRESS_REFUSED
