"""A capture's whole way: switched on, through a real router in front of a simulated engine, the stream and ingest, read back, deleted."""

from __future__ import annotations

import json
import urllib.request
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.utils import timezone

from routing.models import Pool
from routing.services import captures
from routing.services.capture_ingest import STREAM, CaptureIngest
from routing.traces.request import TraceRequest
from tenants.scoping import tenant_scope
from tests.routing.services.audits.conftest import world
from tests.routing.services.audits.rig import until
from tests.routing.services.rows import ACTOR, secret

if TYPE_CHECKING:
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]
__all__ = ["world"]  # the fixture


class Captured:
    """Conversations of a key, and what the real ingest took of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = redis.Redis.from_url(settings.VALKEY_URL)
        self.ingest = CaptureIngest(self.client, records_key=secret("RECORDS_KEY"), consumer="c1", block_s=0.01)
        self.ingest.ensure_group()
        self.count = 0

    def chat(self, key: str, words: list[str]) -> None:
        messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(words)]
        body = json.dumps({"model": "chat", "max_tokens": 3, "messages": messages}).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.world.rig.url}/v1/chat/completions", body, headers), timeout=20) as answer:
            assert answer.status == 200
        self.count += 1

    def switch(self, what: Any, **more: Any) -> None:
        """Change the capture and wait until the router has it."""
        ids = {"tenant_id": self.world.tenant.id, "endpoint_id": self.world.endpoint_id}
        with tenant_scope(self.world.tenant.id):
            what(**ids, actor=ACTOR, now=timezone.now(), **more)
        self.world.publish()

    def take(self, expected: int) -> None:
        """Ingest until so many are stored."""
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE saltroute_ingest")

        def arrived() -> bool:
            self.ingest.turn()
            return self.ingest.counts["stored"] >= expected

        until(arrived)
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE saltroute_app")
        assert self.client.xlen(STREAM) == 0

    def read(self) -> list[TraceRequest]:
        now = timezone.now()
        trace = captures.read_trace(tenant=self.world.tenant.id, endpoint_id=self.world.endpoint_id, since=now - timedelta(hours=1), until=now)
        return list(trace.requests)


def test_from_switching_on_to_deleting(world: World) -> None:
    """Before and after nothing leaves the router; between, two scopes' conversations come back as requests that share what they shared."""
    with tenant_scope(world.tenant.id):
        Pool.objects.update(isolation="declared")  # two namespaces on one engine that nobody has audited
    key, other = world.key("app"), world.key("support", "support")
    seen = Captured(world)
    seen.chat(key, ["before"])
    seen.switch(captures.enable, days=1, share=1.0)
    long = "the salt trade of Timbuktu " * 200
    seen.chat(key, [long])
    seen.chat(key, [long, "an answer", "and then?"])
    seen.chat(other, [long])
    seen.take(3)
    first, second, elsewhere = seen.read()
    whole = first.prompt_tokens // 512
    assert whole >= 2
    assert first.blocks[:whole] == second.blocks[:whole] == elsewhere.blocks[:whole] == tuple(range(whole))
    assert (first.session, second.session, elsewhere.session) == ("s1", "s1", "s2")
    assert (first.scope, second.scope, elsewhere.scope) == ("n1", "n1", "n2")
    assert (first.kind, second.kind) == ("single", "conversation")
    assert {one.output_tokens for one in (first, second, elsewhere)} == {3}
    assert (first.at_s, second.after_s) == (0.0, None)  # only a session that the client named has think times

    seen.switch(captures.delete)
    with pytest.raises(captures.NothingCaptured):
        seen.read()
    seen.chat(key, [long])
    seen.ingest.turn()
    assert seen.ingest.counts["stored"] == 3
    assert seen.client.xlen(STREAM) == 0
