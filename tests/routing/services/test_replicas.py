"""Replicas where the API's tests cannot reach: two tenants at once, names that resolve, processes without a seal key."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
from django.db import connection, transaction

from routing.models import Replica
from routing.outbound import addresses
from routing.services import replicas
from tenants.core.errors import Invalid
from tenants.scoping import tenant_scope
from tests.routing.services.made import make
from tests.routing.services.rows import a_pool, a_replica


@pytest.mark.django_db(transaction=True)
def test_of_two_tenants_at_once_one_gets_the_address(transactional_db: None) -> None:
    """The second waits for the first one's commit and is then refused, as if it had come a day later."""
    acorn, birch = make("acorn"), make("birch")
    with tenant_scope(birch.id):
        other = a_pool(birch.id)
    outcome: list[str] = []

    def second() -> None:
        try:
            with tenant_scope(birch.id):
                a_replica(other)
            outcome.append("stored")
        except Invalid as refusal:
            outcome.append(refusal.message)
        finally:
            connection.close()

    thread = threading.Thread(target=second)
    with transaction.atomic():
        with tenant_scope(acorn.id):
            a_replica(a_pool(acorn.id))
        thread.start()
        _until_somebody_waits()
        assert outcome == []
    thread.join(timeout=30)
    assert outcome == [replicas.ADDRESS_REFUSED]
    with tenant_scope(birch.id):
        assert Replica.objects.count() == 0


def _until_somebody_waits() -> None:
    for _ in range(100_000):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            if cursor.fetchone()[0]:
                return
    pytest.fail("nobody waited for the address")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("found", "allowed"),
    [(["198.51.100.7"], False), (["8.8.8.8"], True), (["8.8.8.8", "169.254.169.254"], False), (["8.8.8.8", "::1"], False), ([], True)],
)
def test_a_name_is_judged_by_all_its_addresses(transactional_db: None, monkeypatch: pytest.MonkeyPatch, found: list[str], allowed: bool) -> None:
    """One bad address among good ones refuses it; a name that does not resolve yet is kept: the router checks at every connect."""

    def resolve(_host: str) -> Iterable[str]:
        return found

    monkeypatch.setattr(replicas, "system_resolve", resolve)
    acorn = make("acorn")
    with tenant_scope(acorn.id):
        pool = a_pool(acorn.id)
        if allowed:
            assert a_replica(pool, url="https://gpu.acorn.example:8443/v1").url == "https://gpu.acorn.example:8443"
        else:
            with pytest.raises(Invalid) as refused:
                a_replica(pool, url="https://gpu.acorn.example:8443/v1")
            assert (refused.value.field, refused.value.message) == ("url", replicas.ADDRESS_REFUSED)


@pytest.mark.django_db
def test_a_resolver_that_hangs_holds_nobody_up(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name counts as not resolving; nothing waits for longer than the bound."""
    release = threading.Event()

    def resolve(_host: str) -> Iterable[str]:
        release.wait(30)
        return ["127.0.0.1"]

    monkeypatch.setattr(replicas, "system_resolve", resolve)
    monkeypatch.setattr(replicas, "RESOLVE_S", 0.05)
    acorn = make("acorn")
    try:
        with tenant_scope(acorn.id):
            a_replica(a_pool(acorn.id), url="http://slow.acorn.example")
    finally:
        release.set()


def test_the_spelling_of_event_sockets() -> None:
    """As they would be kept: the host in its usual form, the port as it is, also where it is a default of http."""
    spelled = replicas.spelled({"endpoint": "tcp://GPU.example.:80", "replay": "tcp://[::1]:5558", "topic": "kv"})
    assert spelled == {"endpoint": "tcp://gpu.example:80", "replay": "tcp://[::1]:5558", "topic": "kv"}
    assert replicas.spelled({"endpoint": "nonsense"}) == {"endpoint": "nonsense"}
    assert replicas.spelled(None) is None
    assert addresses.normalise_url("http://[::1]:5558") == "http://[::1]:5558"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "spelling",
    [
        "http://127.0.0.1:9003/x",
        "https://127.0.0.1:9003",
        "http://[::ffff:127.0.0.1]:9003",
        "http://[::127.0.0.1]:9003",
        "http://[64:ff9b::7f00:1]:9003",
        "http://localhost:9003",
        "http://2130706433:9003/v1",
    ],
)
def test_another_spelling_of_an_engine_is_the_same_engine(transactional_db: None, spelling: str) -> None:
    """Scheme, path, an IPv4 address dressed as IPv6, a name that resolves to it: known to another tenant, so refused like any bad address."""
    acorn, birch = make("acorn"), make("birch")
    with tenant_scope(acorn.id):
        a_replica(a_pool(acorn.id), url="http://127.0.0.1:9003")
    with tenant_scope(birch.id):
        pool = a_pool(birch.id)
    with pytest.raises(Invalid) as refused, tenant_scope(birch.id):
        a_replica(pool, url=spelling)
    assert (refused.value.field, refused.value.message) == ("url", replicas.ADDRESS_REFUSED)
    with tenant_scope(birch.id):  # the control: a neighbour of that engine is nobody's
        assert a_replica(pool, url="http://127.0.0.1:9004").url == "http://127.0.0.1:9004"
