"""Webhooks from registration to the receiver: sealed secrets, signed messages, retries under one id, dead letters."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from namespaces.core import keyring
from namespaces.core.keyring import Roots
from routing.core import webhook as wire
from routing.models import Webhook, WebhookDelivery
from routing.outbound.webhooks import Outcome
from routing.services import webhooks
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tests.fakes.webhook import Receiver
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, a_pool, a_replica

ROOT, NEXT = bytes(range(32)), bytes(range(1, 33))
ROOTS = Roots((ROOT,))


@pytest.fixture(autouse=True)
def installation(settings: Any) -> None:
    """Loopback and plain HTTP are allowed here, and the seal key is of a root that the tests hold."""
    settings.WEBHOOK_RANGES, settings.WEBHOOKS_HTTP = ("127.0.0.0/8",), True
    settings.SEAL_PUBLIC_KEY = keyring.seal_public_key(ROOT)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def register(made: Made, receiver: Receiver, name: str = "ops") -> tuple[UUID, str]:
    """A webhook with one test message queued."""
    with tenant_scope(made.id):
        row, secret = webhooks.create(tenant_id=made.id, actor=ACTOR, name=name, url=receiver.url)
        webhooks.send_test(tenant_id=made.id, actor=ACTOR, webhook_id=row.id)
    return row.id, secret


def the_delivery(made: Made) -> WebhookDelivery:
    with tenant_scope(made.id):
        return WebhookDelivery.objects.get(tenant_id=made.id)


def due_now(made: Made) -> None:
    with tenant_scope(made.id):
        WebhookDelivery.objects.filter(tenant_id=made.id).update(next_at=timezone.now() - timedelta(seconds=1))


def test_a_message_arrives_once_and_proves_where_it_comes_from(acorn: Made, receiver: Receiver) -> None:
    webhook_id, secret = register(acorn, receiver)
    assert webhooks.send(acorn.id, ROOTS) == 1
    assert webhooks.send(acorn.id, ROOTS) == 0
    (got,) = receiver.got
    row = the_delivery(acorn)
    facts = {"delivery_id": got.headers[wire.ID], "timestamp": int(got.headers[wire.TIMESTAMP]), "body": got.body}
    assert wire.verify(secret, **facts, signature=got.headers[wire.SIGNATURE], now_s=time.time())  # type: ignore[arg-type]  # of several types
    assert got.headers[wire.ID] == str(row.id)
    assert (json.loads(got.body)["event"], json.loads(got.body)["id"]) == ("test", str(row.id))
    assert (row.state, row.status, row.error, row.attempts) == ("delivered", 200, "", 1)
    with tenant_scope(acorn.id):
        assert Webhook.objects.get(id=webhook_id).delivered_at is not None


def test_the_secret_lies_sealed_and_is_in_no_log(acorn: Made, receiver: Receiver) -> None:
    webhook_id, secret = register(acorn, receiver)
    with tenant_scope(acorn.id):
        sealed = bytes(Webhook.objects.get(id=webhook_id).secret)
        logged = str(list(AuditEntry.objects.filter(tenant_id=acorn.id).values_list("before", "after")))
    assert secret.encode() not in sealed
    assert secret not in logged
    assert keyring.unseal(ROOT, sealed, info=keyring.webhook_info(acorn.id, webhook_id)) == secret.encode()
    with pytest.raises(keyring.KeyringError):
        keyring.unseal(ROOT, sealed, info=keyring.webhook_info(acorn.id, acorn.id))


def test_a_failed_message_comes_again_later_under_its_id_until_it_is_given_up(acorn: Made, receiver: Receiver) -> None:
    webhook_id, _ = register(acorn, receiver)
    receiver.status = 500
    for attempt in range(1, wire.MAX_ATTEMPTS + 1):
        assert webhooks.send(acorn.id, ROOTS) == 0
        assert webhooks.send(acorn.id, ROOTS) == 0  # not due yet
        row = the_delivery(acorn)
        assert (row.attempts, row.status, row.error) == (attempt, 500, "status")
        assert row.state == ("dead" if attempt == wire.MAX_ATTEMPTS else "queued")
        due_now(acorn)
    assert len(receiver.got) == wire.MAX_ATTEMPTS
    assert len({got.headers[wire.ID] for got in receiver.got}) == 1
    assert webhooks.send(acorn.id, ROOTS) == 0
    with tenant_scope(acorn.id):
        assert Webhook.objects.get(id=webhook_id).dead == 1


def test_it_succeeds_as_soon_as_the_receiver_does(acorn: Made, receiver: Receiver) -> None:
    register(acorn, receiver)
    receiver.status = 503
    webhooks.send(acorn.id, ROOTS)
    receiver.status = 204
    due_now(acorn)
    assert webhooks.send(acorn.id, ROOTS) == 1
    assert (the_delivery(acorn).state, the_delivery(acorn).attempts) == ("delivered", 2)


def test_what_another_worker_has_taken_is_not_sent_beside_it(acorn: Made, receiver: Receiver) -> None:
    """A lease keeps others away; when it has run out, its worker is taken for dead, and what it says later counts for nothing."""
    register(acorn, receiver)
    with tenant_scope(acorn.id):
        (taken,) = webhooks._lease(acorn.id, timezone.now())
    assert webhooks.send(acorn.id, ROOTS) == 0
    due_now(acorn)
    assert webhooks.send(acorn.id, ROOTS) == 1
    with tenant_scope(acorn.id):
        webhooks._note(acorn.id, webhooks._Sent(taken.id, taken.attempts, Outcome(None, "timeout")), timezone.now())
    assert the_delivery(acorn).state == "delivered"


def test_a_late_word_of_a_worker_that_was_taken_for_dead_changes_nothing(acorn: Made, receiver: Receiver) -> None:
    """Neither of a message that another worker has by then, nor does it put the next attempt off."""
    register(acorn, receiver)
    with tenant_scope(acorn.id):
        (first,) = webhooks._lease(acorn.id, timezone.now())
    due_now(acorn)
    with tenant_scope(acorn.id):
        (second,) = webhooks._lease(acorn.id, timezone.now())
        assert (first.attempts, second.attempts) == (1, 2)
        webhooks._note(acorn.id, webhooks._Sent(first.id, 1, Outcome(500, "status")), timezone.now())
    assert (the_delivery(acorn).error, the_delivery(acorn).status) == ("", None)
    with tenant_scope(acorn.id):
        webhooks._note(acorn.id, webhooks._Sent(first.id, 2, Outcome(500, "status")), timezone.now())
    assert (the_delivery(acorn).error, the_delivery(acorn).status) == ("status", 500)


def test_a_secret_that_does_not_open_sends_nothing(acorn: Made, receiver: Receiver) -> None:
    register(acorn, receiver)
    assert webhooks.send(acorn.id, Roots((NEXT,))) == 0
    assert receiver.got == []
    assert the_delivery(acorn).error == "secret"


def test_a_rotation_of_the_root_carries_the_secrets_along(acorn: Made, receiver: Receiver) -> None:
    register(acorn, receiver)
    both, values = Roots((NEXT, ROOT)), webhooks.SECRETS
    with tenant_scope(acorn.id):
        assert values.left(acorn.id, both) == 1
        assert values.reseal(acorn.id, both).moved == 1
        assert values.left(acorn.id, both) == 0
    assert webhooks.send(acorn.id, Roots((NEXT,))) == 1


def test_another_secret_signs_from_then_on(acorn: Made, receiver: Receiver) -> None:
    webhook_id, old = register(acorn, receiver)
    with tenant_scope(acorn.id):
        _, new = webhooks.rotate(tenant_id=acorn.id, actor=ACTOR, webhook_id=webhook_id)
    webhooks.send(acorn.id, ROOTS)
    (got,) = receiver.got
    signed = [wire.sign(secret, delivery_id=got.headers[wire.ID], timestamp=int(got.headers[wire.TIMESTAMP]), body=got.body) for secret in (old, new)]
    assert [one == got.headers[wire.SIGNATURE] for one in signed] == [False, True]


def test_off_means_off_and_deleted_means_gone(acorn: Made, receiver: Receiver) -> None:
    webhook_id, _ = register(acorn, receiver)
    with tenant_scope(acorn.id):
        webhooks.update(tenant_id=acorn.id, actor=ACTOR, webhook_id=webhook_id, enabled=False)
        with pytest.raises(Conflict):
            webhooks.send_test(tenant_id=acorn.id, actor=ACTOR, webhook_id=webhook_id)
    assert webhooks.send(acorn.id, ROOTS) == 0
    with tenant_scope(acorn.id):
        webhooks.delete(tenant_id=acorn.id, actor=ACTOR, webhook_id=webhook_id)
        assert WebhookDelivery.objects.count() == 0
    assert receiver.got == []


def test_bounds(acorn: Made, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook_id, _ = register(acorn, receiver)
    monkeypatch.setattr(webhooks, "MAX_QUEUED", 1)
    monkeypatch.setattr(webhooks, "MAX_WEBHOOKS", 1)
    with tenant_scope(acorn.id):
        with pytest.raises(Conflict):
            webhooks.send_test(tenant_id=acorn.id, actor=ACTOR, webhook_id=webhook_id)
        with pytest.raises(LimitReached):
            webhooks.create(tenant_id=acorn.id, actor=ACTOR, name="one more", url=receiver.url)


@pytest.mark.parametrize("url", ["https://169.254.169.254/x", "https://10.0.0.1/x", "https://a:b@example.org/", "https://example.org/?a=b", "x", ""])
def test_a_url_that_may_not_be_sent_to_is_refused(acorn: Made, url: str) -> None:
    with tenant_scope(acorn.id), pytest.raises(Invalid) as refused:
        webhooks.create(tenant_id=acorn.id, actor=ACTOR, name="ops", url=url)
    assert refused.value.field == "url"


def test_plain_http_is_refused_unless_the_operator_allows_it(acorn: Made, settings: Any) -> None:
    settings.WEBHOOKS_HTTP = False
    with tenant_scope(acorn.id):
        with pytest.raises(Invalid, match="https"):
            webhooks.create(tenant_id=acorn.id, actor=ACTOR, name="ops", url="http://hooks.example.org/x")
        webhooks.create(tenant_id=acorn.id, actor=ACTOR, name="ops", url="https://hooks.example.org/x")


def test_a_strangers_webhook_is_absent(acorn: Made, birch: Made, receiver: Receiver) -> None:
    webhook_id, _ = register(acorn, receiver)
    with tenant_scope(birch.id):
        for call in (webhooks.rotate, webhooks.delete, webhooks.send_test, webhooks.update):
            with pytest.raises(NotFound):
                call(tenant_id=birch.id, actor=ACTOR, webhook_id=webhook_id)
    assert webhooks.send(birch.id, ROOTS) == 0
    assert webhooks.send(acorn.id, ROOTS) == 1


def test_where_engines_may_live_webhooks_may_not_go(acorn: Made, receiver: Receiver, settings: Any) -> None:
    """The operator's ranges for replicas open nothing here: an engine's routes must not be called by whoever names a URL."""
    register(acorn, receiver)
    settings.ALLOWED_RANGES, settings.WEBHOOK_RANGES = ("127.0.0.0/8",), ()
    assert webhooks.send(acorn.id, ROOTS) == 0
    assert (the_delivery(acorn).error, receiver.got) == ("address", [])
    with tenant_scope(acorn.id), pytest.raises(Invalid):
        webhooks.create(tenant_id=acorn.id, actor=ACTOR, name="more", url=receiver.url)


def test_another_tenants_engine_gets_nothing(acorn: Made, birch: Made, receiver: Receiver) -> None:
    """Also where it was registered after the webhook; one's own engine is one's own affair."""
    register(acorn, receiver)
    register(birch, receiver)
    with tenant_scope(birch.id):
        a_replica(a_pool(birch.id), url=f"http://127.0.0.1:{receiver.port}")
    assert webhooks.send(acorn.id, ROOTS) == 0
    assert (the_delivery(acorn).error, receiver.got) == ("address", [])
    assert webhooks.send(birch.id, ROOTS) == 1
    with tenant_scope(acorn.id), pytest.raises(Invalid):
        webhooks.create(tenant_id=acorn.id, actor=ACTOR, name="more", url=f"http://127.0.0.1:{receiver.port}/reset_prefix_cache")
