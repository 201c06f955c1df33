"""Traffic for benchmarks: dialogues of token ids that grow turn by turn, planned from a seed alone, and the client that holds them.

Prompts are token ids, so that router, engine and plan agree on every token without a tokenizer. A turn's prompt is the one before, the engine's
answer to it, and new text: what a chat sends. Four kinds, whose mixture is the caller's: *chats* share system prompts and pause between turns;
*agents* grow fast and pause little; *documents* are long, asked once and never seen again; *writers* ask little and are answered at length, which
fills an engine's cache with what no prompt ever names.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import msgspec

Kind = Literal["chat", "agent", "document", "writer"]
FIRST_ID, LAST_ID = 1_000, 150_000
SYSTEM_PROMPTS = 6
SYSTEM_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Turn:
    """One question: seconds after the answer before, new tokens of text, tokens of the answer."""

    wait_s: float
    new_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Dialogue:
    number: int
    kind: Kind
    start_s: float
    system: int | None  # which shared beginning
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Mix:
    """Dialogues a second of each kind."""

    chats: float = 0.0
    agents: float = 0.0
    documents: float = 0.0
    writers: float = 0.0
    pause_s: float = 4.0  # mean pause of a chat


def plan(mix: Mix, *, seconds: float, seed: int) -> list[Dialogue]:
    """The dialogues that begin within ``seconds``, in order of their start."""
    dialogues: list[Dialogue] = []
    kinds: tuple[tuple[Kind, float], ...] = (("chat", mix.chats), ("agent", mix.agents), ("document", mix.documents), ("writer", mix.writers))
    for kind, rate in kinds:
        draw, at_s = random.Random(f"{seed} {kind}"), 0.0
        while rate > 0 and (at_s := at_s + draw.expovariate(rate)) < seconds:
            dialogues.append(Dialogue(len(dialogues), kind, at_s, *_turns(draw, kind, mix.pause_s)))
    return sorted(dialogues, key=lambda dialogue: dialogue.start_s)


def _turns(draw: random.Random, kind: Kind, pause_s: float) -> tuple[int | None, tuple[Turn, ...]]:
    system = draw.randrange(SYSTEM_PROMPTS)
    if kind == "document":
        return None, (Turn(0.0, draw.randrange(2500, 5000), draw.randrange(6, 24)),)
    if kind == "writer":
        return None, (Turn(0.0, draw.randrange(40, 120), draw.randrange(900, 1500)),)
    if kind == "agent":
        first = Turn(0.0, draw.randrange(1200, 2400), draw.randrange(4, 16))
        return system, (
            first,
            *(Turn(draw.expovariate(1 / 0.6), draw.randrange(60, 400), draw.randrange(4, 16)) for _ in range(draw.randrange(4, 12))),
        )
    first = Turn(0.0, draw.randrange(200, 1500), draw.randrange(6, 24))
    later = (Turn(draw.expovariate(1 / pause_s), draw.randrange(30, 250), draw.randrange(6, 24)) for _ in range(draw.randrange(2, 8)))
    return system, (first, *later)


def text(seed: object, tokens: int) -> list[int]:
    """Token ids that nothing else begins with."""
    draw = random.Random(repr(seed))
    return [draw.randrange(FIRST_ID, LAST_ID) for _ in range(tokens)]


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. ``at_s`` is when it was asked, since the run began; ``reusable_tokens`` is what of its prompt some engine computed in the dialogue
    before: 0 in its first turn."""

    at_s: float
    kind: Kind
    reusable_tokens: int
    ttft_s: float | None
    prompt_tokens: int
    cached_tokens: int


@dataclass
class Client:
    """Holds dialogues through a router. ``live_tokens`` is what a perfect cache would hold now: the dialogues that are under way."""

    session: aiohttp.ClientSession
    url: str
    key: str
    model: str
    seed: int
    samples: list[Sample] = field(default_factory=list)
    failed: int = 0
    patient: bool = False  # ask again where the router is away
    salts: Callable[[Dialogue], str | None] | None = None  # the client's own subdivision of its namespace, for each dialogue
    other_urls: tuple[str, ...] = ()  # further routers before the same engines; turns go to all of them in turn, as behind a balancer
    turn: int = 0
    live: dict[int, int] = field(default_factory=dict)
    began_s: float = field(default_factory=time.perf_counter)

    @property
    def live_tokens(self) -> int:
        return sum(self.live.values())

    async def hold_all(self, dialogues: Sequence[Dialogue], *, until_s: float) -> None:
        """Hold them at their times; what still goes on at ``until_s`` is left."""
        self.began_s = time.perf_counter()
        tasks = [asyncio.create_task(self._hold(dialogue)) for dialogue in dialogues]
        await asyncio.wait(tasks, timeout=until_s)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _hold(self, dialogue: Dialogue) -> None:
        await asyncio.sleep(dialogue.start_s)
        prompt = [] if dialogue.system is None else text((self.seed, "system", dialogue.system), SYSTEM_TOKENS)
        salt = None if self.salts is None else self.salts(dialogue)
        known_tokens = 0
        try:
            for number, turn in enumerate(dialogue.turns):
                await asyncio.sleep(turn.wait_s)
                prompt = prompt + text((self.seed, dialogue.number, number), turn.new_tokens)
                self.live[dialogue.number] = len(prompt)
                answer = await self._ask(dialogue.kind, prompt, turn.answer_tokens, known_tokens=known_tokens, salt=salt)
                if answer is None:
                    return
                prompt = prompt + answer
                known_tokens = len(prompt)
                self.live[dialogue.number] = len(prompt)
        finally:
            self.live.pop(dialogue.number, None)

    async def _ask(self, kind: Kind, prompt: list[int], answer_tokens: int, *, known_tokens: int, salt: str | None) -> list[int] | None:
        stream = kind != "writer"
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": answer_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": stream,
        }
        if salt is not None:
            body["cache_salt"] = salt
        if stream:
            body["stream_options"] = {"include_usage": True}
        data, headers = msgspec.json.encode(body), {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        urls = (self.url, *self.other_urls)
        self.turn += 1
        url = urls[self.turn % len(urls)]
        while True:
            asked_s = time.perf_counter()
            try:
                async with self.session.post(f"{url}/v1/completions", data=data, headers=headers) as reply:
                    raw = await reply.content.readany()
                    ttft_s = time.perf_counter() - asked_s if stream else None
                    raw += await reply.read()
                    if reply.status == 200:
                        break
            except (aiohttp.ClientError, OSError):
                pass
            self.failed += 1
            if not self.patient:
                return None
            await asyncio.sleep(0.1)
        usage, answer = _read_stream(raw) if stream else _read_whole(raw)
        if usage is None:
            self.failed += 1
            return None
        cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.samples.append(Sample(asked_s - self.began_s, kind, known_tokens, ttft_s, usage["prompt_tokens"], cached_tokens))
        return answer


def _read_stream(raw: bytes) -> tuple[dict[str, Any] | None, list[int]]:
    usage: dict[str, Any] | None = None
    answer: list[int] = []
    for line in raw.split(b"\n\n"):
        if line.startswith(b"data: {"):
            event = msgspec.json.decode(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                answer += choice.get("token_ids") or []
    return usage, answer


def _read_whole(raw: bytes) -> tuple[dict[str, Any] | None, list[int]]:
    event = msgspec.json.decode(raw)
    return event.get("usage"), event["choices"][0].get("token_ids") or []


def quiet() -> None:
    """What is said of connections that end with the run is of no interest."""
    for name in ("aiohttp.server", "saltroute.router", "saltroute.residency"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def hit_rate(samples: Sequence[Sample]) -> float:
    """Cached over all prompt tokens."""
    return sum(one.cached_tokens for one in samples) / max(1, sum(one.prompt_tokens for one in samples))


def reuse(samples: Sequence[Sample]) -> float:
    """Cached over reusable tokens, of turns that continue a dialogue: 1 where every turn finds all that was computed before."""
    later = [one for one in samples if one.reusable_tokens]
    return sum(min(one.cached_tokens, one.reusable_tokens) for one in later) / max(1, sum(one.reusable_tokens for one in later))


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
