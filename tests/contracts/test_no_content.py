"""Nothing that a request says, and no key or salt, is in anything that the router leaves behind: spans, metrics, logs, Valkey, rows, answers of ours.

Two conversations and a prompt of token ids go through a real router with traces on and a capture running, a failure among them, and are ingested;
what was captured is exported. Then every byte is searched, for digests that anybody could make too. The control: the engine did see all of it, and
each place that is searched does hold what it should.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
import uuid
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import redis
from django.apps import apps
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from namespaces.core.captures import capture_key
from namespaces.core.salts import Namespace
from routing.core import blocks, capture, prefix
from routing.core.snapshot import CaptureEntry
from routing.models import TraceCapture
from routing.services import captures
from routing.services.capture_ingest import CaptureIngest
from routing.services.records import Ingest
from routing.traces.export import mooncake_lines
from tenants.models import Tenant
from tenants.scoping import tenant_scope
from tests.fakes import rig as rigs
from tests.fakes.collector import FakeCollector
from tests.fakes.replica import Script, chunk, usage_chunk
from tests.fakes.rig import KEY_A, KEY_A_EMEA, KEY_B, Rig, named, standard_rig, until
from tests.routing.services.test_records import ingest_role

pytestmark = pytest.mark.django_db(transaction=True)

WORDS = ("zanzibar", "quokkasecret", "brontosaur", "xylophonist")
CHAT = {
    "model": "m-7b",
    "stream": True,
    "stop": ["stopwordofclient"],
    "user": "useridofclient",
    "messages": [
        {"role": "system", "content": f"You are {WORDS[0]}. " * 40},
        {"role": "user", "content": f"{WORDS[1]}, {WORDS[2]} and {WORDS[3]}"},
    ],
    "tools": [{"type": "function", "function": {"name": "toolnameofclient", "description": "tooldescription", "parameters": {}}}],
}
TOKENS = [1_234_567 + 7 * place for place in range(80)]
ANSWER = "answeredword"
CAPTURE, CAPTURE_SEED = uuid.UUID(int=77), bytes(range(96, 128))
CAPTURE_KEY = capture_key(rigs.tenant_key(named("tenant acme")), CAPTURE, CAPTURE_SEED)
ENGINE_SAYS = "engineerrortext"
HEADERS = {"X-Session-ID": "sessionofclient", "baggage": "baggage=ofclient", "tracestate": "vendor=ofstate", "User-Agent": "agentofclient/1"}


def _said() -> list[bytes]:
    """What was said, by whichever side, as text."""
    clients = ("stopwordofclient", "useridofclient", "toolnameofclient", "tooldescription", "sessionofclient", "ofclient", "ofstate")
    return [text.encode() for text in (*WORDS, *clients, ANSWER, ENGINE_SAYS)]


def _secrets(namespaces: Iterable[Namespace]) -> list[bytes]:
    """Keys, salts, seeds, token ids and digests of prompts, in the forms in which they could be written down."""
    raw = [rigs.ROOT, rigs.PUBLISH, rigs.SECRETS.records_key]
    found = [KEY_A.encode(), KEY_A_EMEA.encode(), KEY_B.encode()]
    for namespace in namespaces:
        found.append(namespace.salt.encode())
        raw.append(namespace.index_seed)
        raw += prefix.chain(namespace.index_seed, prefix.prompt_units(CHAT))
        raw += blocks.token_chain(namespace.index_seed, TOKENS, 16)
    raw += [CAPTURE_KEY, CAPTURE_SEED, *_digests_of_anybody()]
    for secret in raw:
        found += [secret, secret.hex().encode(), msgspec.json.encode(secret).strip(b'"=')]
    for one, other in pairwise(TOKENS):  # one number alone may turn up by chance
        found += [f"{one}{between}{other}".encode() for between in (",", ", ", " ")]
        orders: tuple[Literal["big", "little"], ...] = ("big", "little")
        for order in orders:
            pair = one.to_bytes(4, order), other.to_bytes(4, order)
            found += [b"".join(pair), b"\xce".join(pair)]
    return found


def _digests_of_anybody() -> list[bytes]:
    """Digests of prompts and their blocks that need no key: whoever guesses a prompt could make them and compare."""
    found = []
    for content in (prefix.prompt_units(CHAT), blocks.pack(TOKENS)):
        pieces = [content, *(content[start : start + size] for size in (128, 2048) for start in range(0, len(content), size))]
        for piece in pieces:
            found += [hashlib.new(name, piece).digest()[:length] for name in ("sha256", "blake2b", "md5", "sha1") for length in (8, 16)]
    return found


async def _run(state: Path, valkey_url: str, heard: list[bytes]) -> tuple[bytes, bytes, list[bytes], list[Namespace], list[bytes]]:
    """The traffic; returns what the engines received, the metrics page and status, spans, the namespaces, and the answers."""
    collector = FakeCollector()
    await collector.start()
    answers = []
    try:
        async with standard_rig(state, valkey_url=valkey_url, otlp_endpoint=collector.url, scrape_s=0.05, poll_s=0.05) as rig:
            listener = asyncio.create_task(_listen(valkey_url, heard))
            running = CaptureEntry(id=CAPTURE, seed=CAPTURE_SEED, share=1.0, until=time.time() + 600)
            rig.publish(rigs.bumped(rig.acme, endpoints=(msgspec.structs.replace(rig.acme.endpoints[0], capture=running),)))
            answers += await _traffic(rig)
            plane = rig.router.plane
            await until(lambda: plane.telemetry.queued() == 0 and plane.tracing.queued() == 0 and plane.captures.queued() == 0)
            async with rig.client.get(f"{rig.internal}/status") as answer:
                status = await answer.read()
            received = b"\n".join(one.body + json.dumps(one.headers).encode() for fake in (rig.a, rig.b) for one in fake.requests)
            namespaces = [rig.namespace(), rig.namespace(KEY_A_EMEA, "support/emea"), rig.namespace(KEY_B)]
            page = plane.metrics.page() + status
            listener.cancel()
    finally:
        await collector.stop()
    return received, page, collector.bodies, namespaces, answers


async def _listen(valkey_url: str, heard: list[bytes]) -> None:
    """Keep what goes over Valkey's channels and is stored nowhere."""
    async with redis.asyncio.Redis.from_url(valkey_url) as client, client.pubsub() as channel:
        await channel.psubscribe("*")
        async for message in channel.listen():
            heard += [message["data"]] if isinstance(message["data"], bytes) else []


async def _traffic(rig: Rig) -> list[bytes]:
    answers = []
    for fake in (rig.a, rig.b):
        fake.script = Script(sse=[chunk(ANSWER), chunk(finish="stop"), usage_chunk(prompt=400, completion=2, cached=0), "[DONE]"])
    for key in (KEY_A, KEY_A_EMEA, KEY_B):
        for _ in range(2):
            assert (await rig.chat(CHAT, key=key, headers=HEADERS)).status == 200
        reply = await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": TOKENS, "stream": True}, key=key)
        assert reply.status == 200
    for fake in (rig.a, rig.b):
        fake.script = Script(status=500, body={"error": {"message": f"{ENGINE_SAYS} {WORDS[0]}"}})
    failed = await rig.chat(CHAT, headers=HEADERS)
    assert failed.status >= 500
    answers.append(failed.body)
    for wrong in ({**CHAT, "model": "zanzibar-model"}, {**CHAT, "messages": "zanzibar"}):
        refused = await rig.chat(wrong, headers=HEADERS)
        assert refused.status in (400, 404)
    return answers


def _everything_in(client: Any) -> bytes:
    """Every key and value in Valkey, whatever its type."""
    readers = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": client.xrange,
    }
    return b"\n".join(key + b" " + _flat(readers[client.type(key)](key)) for key in client.scan_iter())


def _flat(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return b" ".join(_flat(key) + b" " + _flat(held) for key, held in value.items())
    return b" ".join(_flat(one) for one in value) if isinstance(value, list | tuple | set) else str(value).encode()


def _rows(tenant_id: uuid.UUID) -> bytes:
    """Every row that the application may read, of every table, as text."""
    found = []
    with tenant_scope(tenant_id):
        for table in sorted({model._meta.db_table for model in apps.get_models(include_auto_created=True)}):
            try:
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(f'SELECT t::text FROM "{table}" t')
                    found += [str(row[0]) for row in cursor.fetchall()]
            except DatabaseError:
                continue  # not the application's to read
    return "\n".join(found).encode()


def _leaks(left: dict[str, bytes], unwanted: Iterable[bytes]) -> list[tuple[str, bytes]]:
    """Which of ``unwanted`` is where."""
    return [(place, secret) for secret in unwanted for place, held in left.items() if secret in held]


def test_nothing_said_and_no_secret_is_left_behind(tmp_path: Path, valkey_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Words of prompts and answers, token ids, digests, salts, seeds and keys are in no span, metric, log, message, row, file or export."""
    caplog.set_level(logging.DEBUG)
    tenant_ids = [named("tenant acme"), named("tenant globex")]
    for tenant_id, slug in zip(tenant_ids, ("acme", "globex"), strict=True):
        with tenant_scope(tenant_id):
            Tenant.objects.create(id=tenant_id, slug=slug)
    began_at = timezone.now()
    endpoint_id = named(f"endpoint {tenant_ids[0]} m-7b")
    said = {"share": 1.0, "began_at": began_at, "ends_at": began_at + timedelta(days=1), "endpoint_name": "m-7b"}
    with tenant_scope(tenant_ids[0]):  # the seed is the one thing of a capture that its row must hold: not here, so that it is searched for
        TraceCapture.objects.create(tenant_id=tenant_ids[0], id=CAPTURE, endpoint_id=endpoint_id, **said)
    heard: list[bytes] = []
    received, page, spans, namespaces, answers = asyncio.run(_run(tmp_path, valkey_url, heard))
    with redis.Redis.from_url(valkey_url) as client:
        in_valkey = _everything_in(client)
        with ingest_role():
            for kind in (Ingest, CaptureIngest):
                ingest = kind(client, records_key=rigs.SECRETS.records_key, consumer="c", block_s=0.001, backoff_s=(0.001, 0.01))
                ingest.ensure_group()
                while ingest.turn():
                    pass
    trace = captures.read_trace(tenant=tenant_ids[0], endpoint_id=endpoint_id, since=began_at - timedelta(hours=1), until=timezone.now())
    exported = b"".join(mooncake_lines(trace))
    rows = b"\n".join(_rows(tenant_id) for tenant_id in tenant_ids)
    logs = "\n".join(f"{one.name} {one.getMessage()} {one.exc_text or ''}" for one in caplog.records if not one.name.startswith("django.db")).encode()
    files = b"\n".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    for text in (*WORDS, "toolnameofclient", *(str(token) for token in TOKENS[:3]), *(one.salt for one in namespaces)):
        assert text.encode() in received, text  # the control: the engines saw it
    left = {
        "spans": b"\n".join(spans),
        "metrics": page,
        "logs": logs,
        "valkey": in_valkey,
        "channels": b"\n".join(heard),
        "rows": rows,
        "files": files,
        "export": exported,
    }
    assert b"saltroute.decision.id" in left["spans"]
    assert b"saltroute_requests_total" in left["metrics"]
    assert b"saltroute.router" in left["logs"]
    assert b"chat_completions" in left["valkey"]
    assert b"chat_completions" in left["rows"]
    assert re.search(rb"parts_us", left["rows"])
    ids = capture.text_blocks(CAPTURE_KEY, prefix.prompt_units(CHAT)), capture.token_blocks(CAPTURE_KEY, TOKENS)
    for found in ids:  # the control: what was captured is there, under its key
        assert found in left["valkey"]
        assert found.hex().encode() in left["rows"]
    assert exported.count(b"hash_ids") == 6
    unwanted = (*_said(), *_secrets(namespaces))
    assert _leaks(left, unwanted) == []
    planted = {place: held + unwanted[number % len(unwanted)] for number, (place, held) in enumerate(left.items(), start=7)}
    assert {place for place, _ in _leaks(planted, unwanted)} == set(left)  # the control: what is put into a place is found in it
    for answer in answers:
        assert ENGINE_SAYS.encode() not in answer
