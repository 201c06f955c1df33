"""The service that the router owns: artifacts in, tokens out, within a deadline and never in the way of others."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, get_args

from routing.prompts import prepare
from routing.prompts.artifacts import Artifacts, NamedTemplates
from routing.prompts.encoding import Piece, TokenizerFacts
from routing.prompts.pool import Pool, PoolLimits, Refused
from routing.prompts.prepare import Conversation, Cut
from routing.prompts.segments import Segments, key
from routing.prompts.template import TemplateRefused, choose, rendered
from routing.prompts.types import Api, Kind, NoTokens, PromptModel, Reason, Tokens

__all__ = ["Limits", "NoTokens", "PromptModel", "Prompts", "Reason", "Tokens"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times. ``render_s`` and ``encode_s`` are what a worker may take before it is killed, whatever a caller's deadline is."""

    pool: PoolLimits = field(default_factory=PoolLimits)
    render_s: float = 2.0
    encode_s: float = 5.0
    text_characters: int = 4 * 1024 * 1024
    here_characters: int = 256 * 1024  # more than this is tokenised in the sandbox also with a catalogue's tokenizer: there it can be ended
    loop_characters: int = 2048  # up to this a tokenizer in this process works in the event loop: a thread would take longer than the work
    render_characters: int = 64 * 1024  # up to this (``prepare.within``) a conversation is prepared and rendered in the event loop
    threads: int = 2
    segment_owner_bytes: int = 8 * 1024 * 1024  # about two million tokens for each tenant
    segment_owners: int = 128


@dataclass(slots=True)
class _Prompt:
    """A rendered prompt on its way."""

    pieces: Sequence[Piece]
    exact_pieces: int
    whole: bool = False  # special tokens are added by tokenising the whole, not by a frame
    framed: bool = False
    render_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Caller:
    owner: bytes
    ns_key: bytes
    model: PromptModel


class Prompts:
    """Tokens for request bodies. ``start`` before use, ``stop`` at the end, both in the event loop that calls ``tokens``."""

    def __init__(self, *, catalogue: frozenset[bytes] = frozenset(), limits: Limits | None = None) -> None:
        """``catalogue``: digests of artifacts that the platform vouches for; these may run in this process."""
        self._limits = limits or Limits()
        self._pool = Pool(self._limits.pool)
        self._artifacts = Artifacts(self._pool, catalogue)
        self._segments = Segments(self._limits.segment_owner_bytes, self._limits.segment_owners)
        self._threads: ThreadPoolExecutor | None = None
        self._lanes: dict[bytes, tuple[asyncio.Lock, int]] = {}
        self._stopped = True
        self._results: Counter[str] = Counter()

    async def start(self) -> None:
        """Start the first worker."""
        self._threads = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="saltroute-prompts")
        self._stopped = False
        await self._pool.start()

    async def stop(self) -> None:
        """End the workers. Calls that wait get ``NoTokens("stopped")``."""
        self._stopped = True
        await self._pool.stop()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def load(self, digest: bytes, content: bytes, kind: Kind) -> bool:
        """Make an artifact known; its content is trusted to have this SHA-256. It is compiled when it is first used, or by ``admit``.

        Returns:
            False when there is no room for it.
        """
        return self._artifacts.load(digest, content, kind)

    def unload(self, digest: bytes, kind: Kind) -> None:
        """Forget an artifact with everything derived from it."""
        self._artifacts.unload(digest, kind)
        if kind == "tokenizer":
            self._segments.forget_tokenizer(digest)

    def known(self, digest: bytes, kind: Kind) -> bool:
        """Whether the artifact has been loaded."""
        return self._artifacts.known(digest, kind)

    async def admit(self, digest: bytes, kind: Kind, *, owner: bytes = b"", deadline_s: float = 20.0) -> Reason | None:
        """Compile a loaded artifact for a tenant, in the sandbox unless it is the catalogue's; the reason why it is refused, or None."""
        if self._stopped:
            return "stopped"
        try:
            async with asyncio.timeout(deadline_s):
                await self._artifacts.facts(owner, digest, kind)
        except TimeoutError:
            return "deadline"
        except Refused as refused:
            return refused.reason
        return None

    async def tokens(
        self, body: Mapping[str, Any], *, api: Api, model: PromptModel, ns_key: bytes, owner: bytes, deadline_s: float
    ) -> Tokens | NoTokens:
        """The ids of a body's prompt.

        Args:
            body: a parsed request body; it is not changed.
            ns_key: the namespace, which keys all that is cached; ``owner``: the tenant, whose budget and workers it takes.
            deadline_s: from now. Work that was begun for it may go on and serve the next request.
        """
        result = await self._within(deadline_s, body, api, _Caller(owner, ns_key, model))
        self._results[result.reason if isinstance(result, NoTokens) else "exact" if result.exact else "exact_prefix"] += 1
        return result

    def stats(self) -> dict[str, float]:
        """Counters and gauges for metrics; the names are fixed."""
        pool, segments = self._pool, self._segments
        results = ("exact", "exact_prefix", *get_args(Reason))
        counted = ("workers_started", "workers_retired", "start_failed", "deadline_kills", "deaths", "set_aside", "queue_dropped", "queue_abandoned")
        return {
            **{f"result_{name}": self._results[name] for name in results},
            **{f"sandbox_{name}": pool.counts[name] for name in counted},
            **{f"sandbox_{name}": value for name, value in pool.gauges().items()},
            "segment_hits": segments.hits,
            "segment_misses": segments.misses,
            "segment_evicted_bytes": segments.evicted_bytes,
            "segment_refused": segments.refused,
            "segment_bytes": segments.size_bytes(),
            "segment_owners": segments.owners(),
            "artifact_bytes": self._artifacts.held_bytes(),
            "artifact_refused_bytes": self._artifacts.refused_bytes,
        }

    async def _within(self, deadline_s: float, body: Mapping[str, Any], api: Api, caller: _Caller) -> Tokens | NoTokens:
        if self._stopped:
            return NoTokens("stopped")
        try:
            async with asyncio.timeout(deadline_s):
                return await (self._completion(body, caller) if api == "completions" else self._chat(body, caller))
        except TimeoutError:
            return NoTokens("deadline")
        except (Refused, TemplateRefused) as refused:
            return NoTokens(refused.reason)
        except (OverflowError, RecursionError, UnicodeEncodeError):  # values that no message between processes can carry; lone surrogates
            return NoTokens("unsupported")

    async def _completion(self, body: Mapping[str, Any], caller: _Caller) -> Tokens | NoTokens:
        prepared = prepare.completion(body)
        if isinstance(prepared, NoTokens):
            return prepared
        if isinstance(prepared, prepare.Ids):
            ids = _shortened(prepared.ids, prepared.cut, (0, 0))
            return Tokens(ids, len(ids))
        if len(prepared.text) > self._limits.text_characters:
            return NoTokens("too_long")
        facts = await self._artifacts.tokenizer_facts(caller.owner, caller.model.tokenizer_digest)
        whole = prepared.add_special_tokens and not facts.framed
        pieces: Sequence[Piece] = [prepared.text]
        exact = 1
        if not whole:
            pieces, exact = await self._cut(caller, facts, prepared.text)
        prompt = _Prompt(pieces, exact, whole=whole, framed=prepared.add_special_tokens and facts.framed)
        return await self._tokens(caller, facts, prompt, prepared.cut)

    async def _chat(self, body: Mapping[str, Any], caller: _Caller) -> Tokens | NoTokens:
        digest = caller.model.template_digest
        if digest is None:
            return NoTokens("no_template")
        templates = await self._artifacts.template_facts(caller.owner, digest)
        name = choose(list(templates.named), tools=body.get("tools") is not None)
        template = templates.named[name]
        short = prepare.within(body, self._limits.render_characters)
        work = partial(
            prepare.chat,
            body,
            content_format=template.content_format,
            knows_developer=template.knows_developer,
            max_characters=self._limits.text_characters,
        )
        prepared = await self._work(caller.owner, work, here=short)
        if isinstance(prepared, NoTokens):
            return prepared
        facts = await self._artifacts.tokenizer_facts(caller.owner, caller.model.tokenizer_digest)
        if prepared.add_special_tokens and not facts.framed:
            return NoTokens("unsupported")
        variables = _specials(templates, template.special_names, facts, prepared.variables) | prepared.variables
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        given = _given(prepared, variables)
        pieces, exact = await self._render(caller, digest, name, given, facts, closed=template.content_format == "openai", short=short)
        prompt = _Prompt(pieces, exact, framed=prepared.add_special_tokens, render_s=loop.time() - began_s)
        return await self._tokens(caller, facts, prompt, prepared.cut)

    async def _render(
        self, caller: _Caller, digest: bytes, name: str, given: dict[str, Any], facts: TokenizerFacts, *, closed: bool, short: bool
    ) -> tuple[Sequence[Piece], int]:
        """The rendered conversation as pieces, and how many of them are exact."""
        limits, tokenizer = self._limits, caller.model.tokenizer_digest
        encoder, here = self._artifacts.encoder(tokenizer), self._artifacts.template(digest)
        if here is not None:
            text, known = await self._work(caller.owner, partial(rendered, here, name, given, limits.text_characters), here=short)
            return await self._cut(caller, facts, text, known, closed=closed)
        needs = [self._artifacts.need(digest, "chat_template")]
        if encoder is None:
            needs.append(self._artifacts.need(tokenizer, "tokenizer"))
        first, second = await self._pool.run(
            owner=caller.owner,
            needs=needs,
            culprit=digest,
            operation="render",
            arguments=[digest, name, given, limits.text_characters, tokenizer if encoder is None else None],
            limit_s=limits.render_s,
        )
        return (first, second) if encoder is None else encoder.cut(first, second, closed=closed)

    async def _cut(self, caller: _Caller, facts: TokenizerFacts, text: str, known: int = -1, *, closed: bool = True) -> tuple[Sequence[Piece], int]:
        """A text as pieces. The added tokens of a tenant's tokenizer are looked for in the sandbox: they may be chosen to make that slow."""
        encoder = self._artifacts.encoder(caller.model.tokenizer_digest)
        if encoder is not None:
            return encoder.cut(text, known, closed=closed)
        if not facts.cuts:
            return [text] if text else [], 1 if text and (known < 0 or known >= len(text)) else 0
        pieces, exact = await self._in_sandbox(caller, "cut", [text, known, closed])
        return pieces, exact

    async def _in_sandbox(self, caller: _Caller, operation: str, arguments: list[Any]) -> Any:
        """An operation of the tokenizer in the sandbox."""
        digest = caller.model.tokenizer_digest
        needs = [self._artifacts.need(digest, "tokenizer")]
        return await self._pool.run(
            owner=caller.owner, needs=needs, culprit=digest, operation=operation, arguments=[digest, *arguments], limit_s=self._limits.encode_s
        )

    async def _tokens(self, caller: _Caller, facts: TokenizerFacts, prompt: _Prompt, cut: Cut | None) -> Tokens:
        """The pieces' ids: those of segments seen before from the cache, the others tokenised in one go."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found, missed = await self._look_up(caller, prompt)
        ids = array("I", facts.prefix if prompt.framed else ())
        exact = 0 if prompt.exact_pieces < len(prompt.pieces) else -1
        for place, piece in enumerate(prompt.pieces, 1):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.frombytes(found[piece])
            if place == prompt.exact_pieces and exact >= 0:
                exact = len(ids)
        if prompt.framed:
            ids.extend(facts.suffix)
        if cut is not None:
            if exact >= 0:
                raise Refused("unsupported")
            frame = _frame(facts, prompt)
            ids = _shortened(ids, cut, frame)
        total = sum(isinstance(piece, str) for piece in prompt.pieces)
        return Tokens(ids, len(ids) if exact < 0 else exact, prompt.render_s, loop.time() - began_s, total - missed, missed)

    async def _look_up(self, caller: _Caller, prompt: _Prompt) -> tuple[dict[str, bytes], int]:
        """The ids of all segments, and how many segments were not in the cache."""
        now_s = asyncio.get_running_loop().time()
        digest = caller.model.tokenizer_digest
        texts = dict.fromkeys(piece for piece in prompt.pieces if isinstance(piece, str))
        keys = {text: key(caller.ns_key, digest, text, whole=prompt.whole) for text in texts}
        found = {text: ids for text in texts if (ids := self._segments.get(caller.owner, keys[text], now_s)) is not None}
        missing = [text for text in texts if text not in found]
        if missing:
            encoded = await self._encode(caller, missing, add_special_tokens=prompt.whole)
            for text, ids in zip(missing, encoded, strict=True):
                self._segments.put(caller.owner, keys[text], ids, now_s)
                found[text] = ids
        return found, len(missing)

    async def _encode(self, caller: _Caller, segments: list[str], *, add_special_tokens: bool) -> list[bytes]:
        encoder = self._artifacts.encoder(caller.model.tokenizer_digest)
        characters = sum(map(len, segments))
        if encoder is None or characters > self._limits.here_characters:
            encoded = await self._in_sandbox(caller, "encode", [segments, add_special_tokens])
            return _checked(encoded, len(segments))
        work = partial(encoder.encode, segments, add_special_tokens=add_special_tokens)
        return await self._work(caller.owner, work, here=characters <= self._limits.loop_characters)

    async def _work(self, owner: bytes, work: Callable[[], T], *, here: bool) -> T:
        """Work in the event loop if it is little (``here``), else in a thread; of one tenant one at a time, so that others find a thread free."""
        if here:
            return work()
        lock, waiting = self._lanes.get(owner) or (asyncio.Lock(), 0)
        self._lanes[owner] = (lock, waiting + 1)
        try:
            async with lock:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            lock, waiting = self._lanes[owner]
            if waiting > 1:
                self._lanes[owner] = (lock, waiting - 1)
            else:
                del self._lanes[owner]


def _given(prepared: Conversation, variables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "messages": prepared.messages,
        "marked": prepared.marked,
        "tools": prepared.tools,
        "documents": prepared.documents,
        "variables": variables,
        "add_generation_prompt": prepared.add_generation_prompt,
        "continue_final_message": prepared.continue_final_message,
    }


def _specials(templates: NamedTemplates, names: Sequence[str], facts: TokenizerFacts, given: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of special tokens for the template.

    Raises:
        Refused: the template names one that nothing tells, or its configuration adds tokens that the tokenizer lacks.
    """
    if not templates.added <= facts.added:
        raise Refused("special_tokens")
    if templates.specials is not None:
        return dict(templates.specials)
    known: dict[str, Any] = {} if facts.bos is None else {"bos_token": facts.bos}
    if any(name not in known and name not in given for name in names):
        raise Refused("special_tokens")
    return known


def _frame(facts: TokenizerFacts, prompt: _Prompt) -> tuple[int, int]:
    if prompt.whole:
        raise Refused("unsupported")  # which of the ids special tokens added is not known
    return (len(facts.prefix), len(facts.suffix)) if prompt.framed else (0, 0)


def _shortened(ids: array[int], cut: Cut | None, frame: tuple[int, int]) -> array[int]:
    """The ids that truncation leaves. Unless the client named the side, special tokens round the text are kept."""
    if cut is None or cut.tokens >= len(ids):
        return ids
    before, after = (0, 0) if cut.explicit else frame
    room = cut.tokens - before - after
    if room <= 0:
        raise Refused("unsupported")
    inner = ids[before : len(ids) - after]
    kept = inner[-room:] if cut.side == "left" else inner[:room]
    return ids[:before] + kept + ids[len(ids) - after :]


def _checked(encoded: Any, count: int) -> list[bytes]:
    """What a worker says are the ids of ``count`` segments."""
    if not isinstance(encoded, list) or len(encoded) != count or not all(isinstance(each, bytes) and len(each) % 4 == 0 for each in encoded):
        raise Refused("worker")
    return encoded
