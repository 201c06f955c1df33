"""A model of an engine's prefix cache, in memory and simulated time: enough to carry out an audit against in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from namespaces.audit.case import Probe, Seen

BLOCK_TOKENS = 16
SALTS = {"A": "sr1-" + "a" * 43, "B": "sr1-" + "b" * 43}


@dataclass
class Engine:
    """``salt_mode`` as the simulator's, and "capitals" for an engine that does not tell them apart; ``template`` words stand before every prompt.

    ``forged``: cached tokens reported whatever was true; from the ``forged_from``-th request on. ``lies``: reports 0 always.
    """

    salt_mode: str = "honour"
    reports: bool = True
    lies: bool = False
    forged: int | None = None
    forged_from: int = 0
    template_tokens: int = 0
    tokens_a_word: int = 1
    noise_s: float = 0.002
    failing: set[int] = field(default_factory=set)  # numbers of requests that are answered by 503
    token_s: float = 0.0001
    cached: set[tuple[object, ...]] = field(default_factory=set)
    requests: int = 0
    rng: Random = field(default_factory=lambda: Random(5))

    def send(self, probe: Probe, prompt: str) -> Seen:
        """One request."""
        self.requests += 1
        if self.requests in self.failing:
            return Seen(probe.label, 503)
        if probe.hostile is not None and probe.hostile.count("cache_salt") == 2 and '{"cache' not in probe.hostile:
            return Seen(probe.label, 400)
        template = ["template"] * self.template_tokens if probe.route == "chat" else []
        words = [*template, *(word for word in prompt.split() for _ in range(self.tokens_a_word))]
        key = self._key(probe)
        blocks = [(key, tuple(words[:end])) for end in range(BLOCK_TOKENS, len(words), BLOCK_TOKENS)]
        held = 0
        for block in blocks:
            if block not in self.cached:
                break
            held += BLOCK_TOKENS
        self.cached.update(blocks)
        ttft_s = 0.01 + (len(words) - held) * self.token_s + abs(self.rng.gauss(0, self.noise_s))
        told: int | None = held
        if not self.reports:
            told = None
        elif self.lies:
            told = 0
        elif self.forged is not None and self.requests >= self.forged_from:
            told = self.forged
        return Seen(probe.label, 200, cached_tokens=told, prompt_tokens=len(words), ttft_s=ttft_s)

    def _key(self, probe: Probe) -> object:
        salt, adapter = probe.salt_prefix + SALTS[probe.scope] + probe.salt_suffix, probe.adapter or ""
        if self.salt_mode == "ignore_salt":
            return adapter
        if self.salt_mode == "truncate_salt":
            return adapter, salt[:46]
        if self.salt_mode == "last_characters":
            return adapter, salt[-8:]
        if self.salt_mode == "capitals":
            return adapter, salt.lower()
        if self.salt_mode == "adapter_before":
            return adapter + salt
        if self.salt_mode == "adapter_after":
            return salt + adapter
        if self.salt_mode == "no_adapter":
            return salt
        return adapter, salt
