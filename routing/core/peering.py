"""What routers of one installation tell one another, and the sender's half of it: placements not yet settled, and the load they cause.

A message is ``magic(4) kind(1) process(16) counter(8, big-endian)`` and a sealed body. The seal is bound to all four, the counter to
one message of one process, so nothing can be forged, moved or sent twice. A process is named by 16 random bytes and names in turn
all whose messages it has heard: that is how a receiver knows that a sender lives now, without a common clock. Times travel as ages.

Placements travel without the blocks that the index already held at the sender, since siblings know those from earlier messages. What
is bounded is left out, and counted.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from routing.core.prefix import DIGEST_BYTES
from routing.core.residency import HistoryIndex

MAGIC = b"SRP1"
BEAT, ASK, ANSWER, PART = 1, 2, 3, 4
PROCESS_BYTES = 16
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_CHAIN_BLOCKS = 16_384  # of a shared prompt (2 MiB); of a longer one siblings learn nothing
MAX_BEAT_BLOCKS = 4096  # of all chains in one beat together: the work that it makes at each sibling
MAX_BEAT_PLACEMENTS = 256
MAX_QUEUED = 4096  # placements and settlements not yet sent
WHOLE_CHAIN_BLOCKS = 32  # shorter chains travel whole, so that a sibling that missed something learns them again
MAX_ENGINES = 1024  # in one beat
_HEAD = struct.Struct(">4sB16sQ")
HEAD_BYTES = _HEAD.size


class PeeringError(Exception):
    """A message is none of ours, or malformed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The clear part of a message."""

    kind: int
    process: bytes
    counter: int


class Load(msgspec.Struct, frozen=True, array_like=True):
    """What a router has at an engine at this moment. ``asked`` counts answers asked since the router's process began, ``queued_tokens`` what is
    without its first byte, ``more_answers`` those that requests in flight ask for beyond one each."""

    engine: bytes
    queued_tokens: float
    waiting: int
    in_flight: int
    asked: int
    more_answers: int = 0


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """A dispatch. ``digests`` are those after ``parent`` (empty: from the beginning). ``shared`` is False where siblings cannot learn what it left
    at the engine."""

    serial: int
    namespace: bytes
    owner: bytes
    engine: bytes
    parent: bytes
    digests: bytes
    sequences: int
    shared: bool = True


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """How a placement went, ``age_ms`` before the message was sent: the prompt's prefill ran, or it was dropped (``certain``: it never ran)."""

    serial: int
    confirmed: bool
    certain: bool
    age_ms: int


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """What a router says at least every quarter of a second. Loads are absolute, so the latest beat says it all; placements come once."""

    router_id: str
    number: int = 0  # of this process's beats, without gaps
    heard: tuple[bytes, ...] = ()
    loads: tuple[Load, ...] = ()
    placements: tuple[Placement, ...] = ()
    settled: tuple[Settled, ...] = ()
    oldest_open: int = 0  # placements before it are settled
    blocks: int = 0  # in its history: who knows most is asked by those who begin
    leaving: bool = False


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A router that began late asks the process ``to`` for what it knows."""

    to: bytes
    ask: bytes


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """``parts`` keys hold what was asked for."""

    to: bytes
    ask: bytes
    parts: int


Body = Beat | Ask | Answer
_TYPES: dict[int, type[Body]] = {BEAT: Beat, ASK: Ask, ANSWER: Answer}
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[int, msgspec.msgpack.Decoder[Body]] = {kind: msgspec.msgpack.Decoder(of) for kind, of in _TYPES.items()}


def head(kind: int, process: bytes, counter: int) -> bytes:
    """The clear beginning of a message; also what its seal is bound to."""
    return _HEAD.pack(MAGIC, kind, process, counter)


def read_head(message: bytes) -> Head:
    """Read the clear part of a message.

    Raises:
        PeeringError: it is no message of a router's, or too large.
    """
    if not HEAD_BYTES < len(message) <= MAX_MESSAGE_BYTES:
        raise PeeringError("size")
    magic, kind, process, counter = _HEAD.unpack_from(message)
    if magic != MAGIC or kind not in (*_TYPES, PART):
        raise PeeringError("not a message of a router")
    return Head(kind=kind, process=process, counter=counter)


def encode(body: Body) -> bytes:
    return _encoder.encode(body)


def decode(kind: int, plaintext: bytes) -> Body:
    """Read an opened body; every name in it has its exact length.

    Raises:
        PeeringError: malformed.
    """
    try:
        body = _decoders[kind].decode(plaintext)
    except (msgspec.MsgspecError, KeyError):
        raise PeeringError("malformed") from None
    if isinstance(body, Beat):
        _check(body)
    elif len(body.to) != PROCESS_BYTES or len(body.ask) != 16:
        raise PeeringError("names must have 16 bytes")
    return body


def _check(beat: Beat) -> None:
    """Lengths matter: the index's keys are namespace + digest, and must not be cut at another place."""
    if len(beat.placements) > MAX_BEAT_PLACEMENTS or len(beat.loads) > MAX_ENGINES or len(beat.router_id) > 256:
        raise PeeringError("too much in one beat")
    for one in beat.placements:
        named = one.namespace, one.engine, one.owner
        if any(len(name) != 16 for name in named) or len(one.parent) not in (0, DIGEST_BYTES) or len(one.digests) % DIGEST_BYTES:
            raise PeeringError("names and digests must have 16 bytes")
        if len(one.digests) > MAX_CHAIN_BLOCKS * DIGEST_BYTES or one.sequences < 0:
            raise PeeringError("a placement is out of bounds")
    for load in beat.loads:
        if len(load.engine) != 16 or not 0 <= load.queued_tokens < 1e12 or min(load.waiting, load.in_flight, load.asked, load.more_answers) < 0:
            raise PeeringError("a load is out of bounds")


@lru_cache(maxsize=4096)
def engine_id(url: str) -> bytes:
    """An engine's name between routers, 16 bytes."""
    return hashlib.sha256(url.encode()).digest()[:16]


def nobody() -> None:
    """Nobody is to be woken."""


@dataclass(slots=True)
class _Waiting:
    placement: Placement
    blocks: int


class Outbox:
    """What this router has to tell. While no sibling was heard only ``asked`` is counted.

    ``dropped`` counts placements that found the queue full, ``cut`` those whose prompt was too long.
    """

    def __init__(self) -> None:
        self.listening = False
        self.wake: Callable[[], None] = nobody
        self.dropped = 0
        self.cut = 0
        self._asked: dict[str, int] = {}
        self._serial = 0
        self._beats = 0
        self._placements: deque[_Waiting] = deque()
        self._settled: deque[tuple[int, bool, bool, float]] = deque()
        self._open: dict[int, None] = {}  # announced or waiting, oldest first

    def placed(self, namespace: bytes, owner: bytes, url: str, digests: Sequence[bytes], *, index: HistoryIndex, sequences: int) -> int:
        """Note a dispatch of ``digests``, before ``index`` counts it.

        Returns the serial by which it is settled, 0 if nobody is told.

        An ``owner`` without a name of 16 bytes is no tenant: siblings learn of the request, not of its prompt.
        """
        self._asked[url] = self._asked.get(url, 0) + sequences
        self.wake()
        if not self.listening:
            return 0
        if len(self._placements) >= MAX_QUEUED or len(self._settled) >= MAX_QUEUED:
            self.dropped += 1
            return 0
        self._serial += 1
        shared = len(digests) <= MAX_CHAIN_BLOCKS
        self.cut += not shared
        if len(owner) != 16 or not shared:
            namespace, owner, digests = bytes(16), bytes(16), ()
        known = index.known(namespace, digests, url, owner=owner) if len(digests) > WHOLE_CHAIN_BLOCKS else 0
        placement = Placement(
            serial=self._serial,
            namespace=namespace,
            owner=owner,
            engine=engine_id(url),
            parent=digests[known - 1] if known else b"",
            digests=b"".join(digests[known:]),
            sequences=sequences,
            shared=shared,
        )
        self._placements.append(_Waiting(placement, len(digests)))
        self._open[self._serial] = None
        return self._serial

    def settled(self, serial: int, *, confirmed: bool, certain: bool = True, at_s: float) -> None:
        """Note how a placement went."""
        self.wake()
        if serial in self._open:
            del self._open[serial]
            self._settled.append((serial, confirmed, certain, at_s))

    def backlog(self) -> int:
        """Placements that wait for the next beat."""
        return len(self._placements)

    def asked(self, url: str) -> int:
        return self._asked.get(url, 0)

    def keep(self, urls: Mapping[str, object]) -> None:
        """Forget the counts of engines that are gone."""
        for url in [url for url in self._asked if url not in urls]:
            del self._asked[url]

    def silent(self) -> None:
        """No sibling is left: forget what nobody will hear."""
        self.listening = False
        self._placements.clear()
        self._settled.clear()
        self._open.clear()

    def beat(self, router_id: str, *, loads: Sequence[Load], heard: Sequence[bytes], now_s: float, blocks: int = 0, leaving: bool = False) -> Beat:
        """The next beat: as many placements as fit, and the settlements of all that were sent."""
        taken: list[Placement] = []
        taken_blocks = 0
        while self._placements and len(taken) < MAX_BEAT_PLACEMENTS:
            taken_blocks += self._placements[0].blocks
            if taken and taken_blocks > MAX_BEAT_BLOCKS:
                break
            taken.append(self._placements.popleft().placement)
        first_waiting = self._placements[0].placement.serial if self._placements else self._serial + 1
        settled = [one for one in self._settled if one[0] < first_waiting]
        self._settled = deque(one for one in self._settled if one[0] >= first_waiting)
        self._beats += 1
        return Beat(
            router_id=router_id,
            number=self._beats,
            heard=tuple(heard),
            loads=tuple(loads[:MAX_ENGINES]),
            placements=tuple(taken),
            settled=tuple(
                Settled(serial=serial, confirmed=confirmed, certain=certain, age_ms=max(0, round((now_s - at_s) * 1000)))
                for serial, confirmed, certain, at_s in settled
            ),
            oldest_open=min(next(iter(self._open), first_waiting), first_waiting),
            blocks=blocks,
            leaving=leaving,
        )
