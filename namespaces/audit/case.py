"""The port of an audit case: a plan of probes in, a verdict out. Law only; who sends the probes is routing's affair.

A *probe* is an ordinary request through the router's internal door, pinned to one replica, in one of two synthetic audit scopes (A and B) of the
tenant. A *case* is one way in which two namespaces might share. Its plan holds, beside each negative probe, the positive control that shows that
sharing would have been seen: without the control's hit the outcome is INCONCLUSIVE, never PASS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

ProbeScope = Literal["A", "B"]
Route = Literal["chat", "completions"]


class Expect(StrEnum):
    """What a probe's answer must show."""

    FRESH = "fresh"  # first use of a nonce: nothing cached, or the nonce is stale and the run tells nothing
    HIT = "hit"  # positive control: at least one block cached
    APART = "apart"  # negative: nothing cached, or two namespaces share
    REFUSED_OR_APART = "refused or apart"  # hostile input: a clear 4xx, or served without a hit


class Outcome(StrEnum):
    PASS = "pass"  # noqa: S105 - an outcome, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    PROVED_ELSEWHERE = "proved elsewhere"  # by property tests of the encoding, or it is the same at the engine as another case
    NOT_EXPRESSIBLE = "not expressible"  # this pool has no adapter, image model or external tier to try it with


@dataclass(frozen=True, slots=True)
class Probe:
    """One request to send. ``prompt`` numbers the nonce; equal numbers mean equal prompts within a plan."""

    label: str
    scope: ProbeScope
    prompt: int
    expect: Expect
    route: Route = "chat"
    stream: bool = False
    hostile: str | None = None  # raw members added to the body, as a client would try
    adapter: str | None = None  # served model to name in place of the base
    salt_prefix: str = ""  # text put before the synthetic scope's salt, to meet an engine that joins texts or reads only a part
    salt_suffix: str = ""  # text put after it


@dataclass(frozen=True, slots=True)
class Seen:
    """What a probe brought back. ``cached_tokens`` None: the engine does not say."""

    label: str
    status: int
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one case; ``evidence`` holds numbers only, never content.

    ``odd`` marks what no honest engine shows, although it proves nothing yet: it raises suspicion, where a mere lack of answers does not.
    """

    outcome: Outcome
    reason: str
    negative_probes: int = 0
    odd: bool = False
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a case may know of the pool it is to be tried on."""

    engine: str
    adapters: tuple[str, ...] = ()
    reads_images: bool = False
    external_tier: bool = False
    routes: tuple[Route, ...] = ("chat", "completions")


@dataclass(frozen=True, slots=True)
class Case:
    """One row, or several that are the same at the engine, of the negative matrix.

    ``plan`` returns None where ``facts`` cannot express it. ``elsewhere`` names the proof of rows that no probe can reach.
    """

    name: str
    title: str
    rows: tuple[int, ...]
    plan: Callable[[Facts], Sequence[Probe] | None] = lambda _facts: None
    elsewhere: str | None = None


def judge(probes: Sequence[Probe], seen: Mapping[str, Seen], *, block_tokens: int) -> Verdict:
    """Judge one run of a plan on an engine that reports cached tokens.

    Any hit in a negative probe is a FAIL, whatever the controls say: sharing was seen. Less than ``block_tokens`` is allowed: one block, and what
    the template puts before every nonce (measured in one scope, since a namespace may well share its own template).
    """
    negatives = [probe for probe in probes if probe.expect in (Expect.APART, Expect.REFUSED_OR_APART)]
    evidence: dict[str, float | int | str | None] = {}
    for probe in probes:
        got = seen.get(probe.label)
        evidence[probe.label] = None if got is None else got.cached_tokens if got.status == 200 else f"status {got.status}"
    for probe in negatives:
        got = seen.get(probe.label)
        if got is not None and got.status == 200 and (got.cached_tokens or 0) >= block_tokens:
            return Verdict(Outcome.FAIL, f"{probe.label}: {got.cached_tokens} tokens came from another namespace", len(negatives), evidence=evidence)
    for probe in probes:
        got = seen.get(probe.label)
        reason = _why_inconclusive(probe, got, block_tokens)
        if reason is not None:
            odd = got is not None and got.status == 200 and probe.expect is Expect.FRESH and got.cached_tokens is not None
            return Verdict(Outcome.INCONCLUSIVE, f"{probe.label}: {reason}", 0, odd, evidence)
    return Verdict(Outcome.PASS, "controls hit, nothing was shared", len(negatives), evidence=evidence)


def _why_inconclusive(probe: Probe, got: Seen | None, block_tokens: int) -> str | None:
    if got is None:
        return "no answer"
    if got.status != 200:
        refused = probe.expect is Expect.REFUSED_OR_APART and 400 <= got.status < 500
        return None if refused else f"status {got.status}"
    if got.cached_tokens is None:
        return "the engine does not report cached tokens"
    if probe.expect is Expect.FRESH and got.cached_tokens >= block_tokens:
        return "the first use of a nonce was already cached"
    if probe.expect is Expect.HIT and got.cached_tokens < block_tokens:
        return "the positive control did not hit"
    return None
