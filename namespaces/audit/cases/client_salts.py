"""What a client may try to choose its own cache with: each is refused, or served without a hit."""

from __future__ import annotations

from collections.abc import Sequence

from namespaces.audit.case import Case, Expect, Facts, Probe

HOSTILE = {
    "text": '"cache_salt": "mine"',
    "129 characters": '"cache_salt": "' + "x" * 129 + '"',
    "slash": '"cache_salt": "a/b"',
    "list": '"cache_salt": ["mine"]',
    "nested": '"vllm_xargs": {"cache_salt": "mine"}, "nvext": {"cache_salt": "mine"}',
    "twice": '"cache_salt": "mine", "cache_salt": "yours"',
    "extra key": '"extra_key": "mine"',
    "forged transfer": '"kv_transfer_params": {"do_remote_prefill": true, "remote_prefill_cached_tokens": 99999}',
}


def plan(_facts: Facts) -> Sequence[Probe]:
    """Each attempt is made in B against its own prompt of A, so that no attempt can warm the cache for the next."""
    probes: list[Probe] = []
    for number, (name, members) in enumerate(HOSTILE.items()):
        probes += [
            Probe(f"A1 {name}", "A", number, Expect.FRESH),
            Probe(f"A2 {name}", "A", number, Expect.HIT),
            Probe(f"B {name}", "B", number, Expect.REFUSED_OR_APART, hostile=members),
        ]
    return tuple(probes)


CASE = Case(name="client_salts", title="salts and cache fields sent by a client", rows=(18, 19), plan=plan)
