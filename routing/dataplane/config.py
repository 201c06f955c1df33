"""Everything that can be set about a router, read once at start-up. The rest of the data plane takes this value and reads no environment.

Policy choices that a setting cannot express are written where they are made; the clocks are explained here:

* ``connect_s``: to an open connection, name look-up included.
* ``first_byte_s``: from the connection to the first event of a stream. ``answer_s`` is the same clock for answers that do not stream: their
first byte comes
  when the whole generation is done, so it is longer.
* ``idle_s``: between two reads of an answer that has begun, and between two reads of a client's upload. There is no total limit: a generation
may take an hour.
* ``write_s``: how long a client may refuse to read before its stream is closed.
* ``tokens_s``: how long a request waits for the exact tokens of a short prompt, and a second more for each megabyte; without them it goes on by
  the bytes. ``parity_s``: between two comparisons of our tokens with an engine's.
* ``kv_replay_s``: how long a replay of KV events may make no progress. ``kv_retry_s``: before an event socket is connected to again, doubling.
* ``drain_s``: how long streams may go on after SIGTERM; ``linger_s``: how long new requests are still served, while balancers take the router out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from namespaces import roots
from namespaces.root import RootError
from routing.outbound.addresses import Network, parse_ranges
from settings import env as read


@dataclass(frozen=True, slots=True)
class Secrets:
    """Key material, from files. Never printed."""

    root: bytes = field(repr=False)  # 32 bytes; the current one
    publish_public_key: bytes = field(repr=False)  # 32 bytes, Ed25519
    records_key: bytes = field(repr=False)
    former_roots: tuple[bytes, ...] = field(default=(), repr=False)  # still accepted while a rotation of the root goes on


@dataclass(frozen=True, slots=True)
class Config:
    """A router's settings; times in seconds."""

    router_id: str
    state_dir: Path
    valkey_url: str | None = field(default=None, repr=False)  # None: from disk alone, for tests and for reading a state directory
    host: str = "127.0.0.1"
    port: int = 8080
    internal_port: int = 8081
    reuse_port: bool = False  # several processes share ``port``, each with an identity, an internal port and a state directory of its own
    allowed_ranges: tuple[Network, ...] = ()
    connect_s: float = 2.0
    first_byte_s: float = 30.0
    answer_s: float = 300.0
    idle_s: float = 60.0
    write_s: float = 30.0
    drain_s: float = 30.0
    linger_s: float = 1.0
    keepalive_s: float = 4.0  # to engines; uvicorn closes idle connections after 5 s
    max_body_bytes: int = 32 * 1024 * 1024
    max_answer_bytes: int = 64 * 1024 * 1024
    max_in_flight: int = 4096  # over all tenants; one of them has seven times what is left over at most (routing.core.shares)
    max_held_bytes: int = 1024 * 1024 * 1024  # of bodies and answers in memory, over all tenants, shared likewise
    max_connections: int = 8192  # of clients; fewer where the process may not open twice as many files
    max_waiting: int = 512  # of one tenant, for the replicas of one pool
    burst_window_s: float = 0.05  # within which equal prompts are one burst
    breaker_failures: int = 3
    breaker_open_s: float = 30.0
    silent_checks: int = 3  # in a row, of an engine's health; then what it has not begun to answer is given up (routing.core.silence)
    poll_s: float = 1.0  # versions in Valkey, and the router's report
    scrape_s: float = 1.0  # engines' health and metrics
    state_s: float = 15.0  # between two states of each replica, for rollups
    stale_s: float = 300.0
    expired_s: float = 86_400.0
    stream_maxlen: int = 200_000
    record_queue: int = 20_000
    capture_stream_maxlen: int = 20_000
    capture_queue: int = 2_000
    record_sample: float = 0.01  # of the requests without anything to remark, whose records hold all candidates
    cors_origins: tuple[str, ...] = ()
    media_hosts: tuple[str, ...] = ()
    tokens_s: float = 0.05
    catalogue: frozenset[bytes] = frozenset()  # SHA-256 of artifacts that the operator vouches for: they run without a sandbox
    artifact_bytes: int = 1024 * 1024 * 1024
    artifact_disk_bytes: int = 2 * 1024 * 1024 * 1024
    parity_s: float = 3600.0
    kv_replay_s: float = 5.0
    kv_retry_s: float = 0.5
    event_index_bytes: int = 1024 * 1024 * 1024
    turns_bytes: int = 64 * 1024 * 1024  # of prints of conversations' last turns
    quota_routers: int = 1  # that share the limits of quotas, until Valkey has said how many there are
    kv_waiting_bytes: int = 256 * 1024 * 1024  # of KV events received and not applied yet, over all engines
    name_ranks: bool = True  # requests name the data-parallel rank of an engine of several that takes it
    otlp_endpoint: str | None = None  # of a collector, such as http://collector:4318; None: no traces
    trace_share: float = 1.0  # of the requests whose traces are exported; failures always are
    trace_trusted: bool = False  # clients' own traces are continued, not linked to


def from_environment(env: Mapping[str, str] = os.environ) -> tuple[Config, Secrets]:
    """Read settings and key files.

    Raises:
        EnvError: something is missing or malformed; the text names the variable.
    """
    return _config(env), _secrets(env)


def _config(env: Mapping[str, str]) -> Config:
    default = Config(router_id="", state_dir=Path())

    def number(name: str, value: float) -> float:
        return read.seconds(name, value, env=env)

    try:
        ranges = parse_ranges(read.words("SALTROUTE_ALLOWED_RANGES", env=env))
    except ValueError:
        raise read.EnvError("SALTROUTE_ALLOWED_RANGES must be networks such as 127.0.0.0/8, separated by commas") from None
    own_port = read.integer("ROUTER_INTERNAL_PORT" if read.flag("ROUTER_REUSE_PORT", env=env) else "ROUTER_PORT", default.port, env=env)
    return Config(
        router_id=read.text("ROUTER_ID", f"{socket.gethostname()}-{own_port}", env=env),
        state_dir=Path(read.text("SALTROUTE_STATE_DIR", env=env)),
        valkey_url=read.password_in(read.text("VALKEY_URL", env=env), "VALKEY_PASSWORD_FILE", env=env),
        host=read.text("ROUTER_HOST", default.host, env=env),
        port=read.integer("ROUTER_PORT", default.port, high=65535, env=env),
        internal_port=read.integer("ROUTER_INTERNAL_PORT", default.internal_port, high=65535, env=env),
        reuse_port=read.flag("ROUTER_REUSE_PORT", env=env),
        allowed_ranges=ranges,
        connect_s=number("ROUTER_CONNECT_S", default.connect_s),
        first_byte_s=number("ROUTER_FIRST_BYTE_S", default.first_byte_s),
        answer_s=number("ROUTER_ANSWER_S", default.answer_s),
        idle_s=number("ROUTER_IDLE_S", default.idle_s),
        write_s=number("ROUTER_WRITE_S", default.write_s),
        drain_s=number("ROUTER_DRAIN_S", default.drain_s),
        linger_s=number("ROUTER_LINGER_S", default.linger_s),
        keepalive_s=number("ROUTER_KEEPALIVE_S", default.keepalive_s),
        max_body_bytes=read.integer("ROUTER_MAX_BODY_BYTES", default.max_body_bytes, low=1024, env=env),
        max_in_flight=read.integer("ROUTER_MAX_IN_FLIGHT", default.max_in_flight, low=1, env=env),
        max_held_bytes=read.integer("ROUTER_MAX_HELD_BYTES", default.max_held_bytes, low=1024 * 1024, env=env),
        max_connections=read.integer("ROUTER_MAX_CONNECTIONS", default.max_connections, low=16, env=env),
        max_waiting=read.integer("ROUTER_MAX_WAITING", default.max_waiting, low=1, env=env),
        breaker_failures=read.integer("ROUTER_BREAKER_FAILURES", default.breaker_failures, low=1, env=env),
        breaker_open_s=number("ROUTER_BREAKER_OPEN_S", default.breaker_open_s),
        silent_checks=read.integer("ROUTER_SILENT_CHECKS", default.silent_checks, low=2, env=env),  # from the second on nothing new is sent there
        scrape_s=number("ROUTER_SCRAPE_S", default.scrape_s),
        state_s=number("ROUTER_STATE_S", default.state_s),
        stale_s=number("ROUTER_STALE_S", default.stale_s),
        expired_s=number("ROUTER_EXPIRED_S", default.expired_s),
        stream_maxlen=read.integer("ROUTER_STREAM_MAXLEN", default.stream_maxlen, low=1000, env=env),
        record_sample=read.integer("ROUTER_RECORD_SAMPLE_PERCENT", round(default.record_sample * 100), low=0, high=100, env=env) / 100,
        record_queue=read.integer("ROUTER_RECORD_QUEUE", default.record_queue, low=100, env=env),
        capture_stream_maxlen=read.integer("ROUTER_CAPTURE_STREAM_MAXLEN", default.capture_stream_maxlen, low=1000, env=env),
        capture_queue=read.integer("ROUTER_CAPTURE_QUEUE", default.capture_queue, low=100, env=env),
        cors_origins=read.words("ROUTER_CORS_ORIGINS", env=env),
        catalogue=_digests("ROUTER_CATALOGUE", env),
        tokens_s=number("ROUTER_TOKENS_S", default.tokens_s),
        artifact_bytes=read.integer("ROUTER_ARTIFACT_BYTES", default.artifact_bytes, low=1024, high=default.artifact_bytes, env=env),
        artifact_disk_bytes=read.integer("ROUTER_ARTIFACT_DISK_BYTES", default.artifact_disk_bytes, low=1024, env=env),
        parity_s=number("ROUTER_PARITY_S", default.parity_s),
        kv_replay_s=number("ROUTER_KV_REPLAY_S", default.kv_replay_s),
        kv_retry_s=number("ROUTER_KV_RETRY_S", default.kv_retry_s),
        event_index_bytes=read.integer("ROUTER_EVENT_INDEX_BYTES", default.event_index_bytes, low=1024 * 1024, env=env),
        turns_bytes=read.integer("ROUTER_TURNS_BYTES", default.turns_bytes, low=1024 * 1024, env=env),
        quota_routers=read.integer("ROUTER_QUOTA_ROUTERS", default.quota_routers, low=1, high=1000, env=env),
        kv_waiting_bytes=read.integer("ROUTER_KV_WAITING_BYTES", default.kv_waiting_bytes, low=16 * 1024 * 1024, env=env),
        name_ranks=read.flag("ROUTER_NAME_RANKS", default.name_ranks, env=env),
        otlp_endpoint=_collector(read.text("ROUTER_OTLP_ENDPOINT", "", env=env)),
        trace_share=read.integer("ROUTER_TRACE_PERCENT", 100, low=0, high=100, env=env) / 100,
        trace_trusted=read.flag("ROUTER_TRACE_TRUSTED", env=env),
        media_hosts=tuple(host.lower() for host in read.words("ROUTER_MEDIA_HOSTS", env=env)),
    )


def _secrets(env: Mapping[str, str]) -> Secrets:
    wanted = read.root_references(env=env)
    if not wanted:
        raise read.EnvError("SALTROUTE_ROOT or SALTROUTE_ROOT_KEY_FILE must be set: without a root key no request can be given its salt")
    try:
        held = roots.load(wanted, env)
    except RootError as error:
        name = "SALTROUTE_ROOT" if env.get("SALTROUTE_ROOT") else "SALTROUTE_ROOT_KEY_FILE"
        raise read.EnvError(f"{name}: {error}") from None
    return Secrets(
        root=held.current,
        former_roots=held.secrets[1:],
        publish_public_key=_key("SALTROUTE_PUBLISH_PUBLIC_KEY_FILE", env),
        records_key=read.secret_file("SALTROUTE_RECORDS_KEY_FILE", env=env),
    )


def _collector(url: str) -> str | None:
    """The address of an OTLP collector; None where there is none."""
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query or parts.fragment):
        raise read.EnvError("ROUTER_OTLP_ENDPOINT must be the http or https address of a collector, such as http://127.0.0.1:4318")
    return url or None


def _digests(name: str, env: Mapping[str, str]) -> frozenset[bytes]:
    try:
        found = frozenset(bytes.fromhex(word) for word in read.words(name, env=env))
    except ValueError:
        found = frozenset((b"",))
    if any(len(digest) != 32 for digest in found):
        raise read.EnvError(f"{name} must be SHA-256 digests of 64 hexadecimal digits, separated by commas")
    return found


def _key(name: str, env: Mapping[str, str]) -> bytes:
    value = read.secret_file(name, env=env)
    if len(value) != 32:
        raise read.EnvError(f"{name} must hold exactly 32 bytes")
    return value
