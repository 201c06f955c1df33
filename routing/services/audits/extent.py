"""How much an audit tries, and the most that trying every case once costs, before the engine is asked anything."""

from __future__ import annotations

import math
from dataclasses import dataclass

from namespaces.audit.case import Expect, Facts
from namespaces.audit.cases import CASES
from routing.services.audits.prompts import MOST_TOKENS_A_WORD, PROMPT_TOKENS, PROMPTS_DIFFER, WORDS_A_PROMPT


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is tried. With the defaults a run costs about 140,000 computed tokens, without reported tokens about 295,000.

    ``rounds``: further rounds of "two salts" on an engine that reports (two negative probes each). ``timed_negatives``: negative probes of
    "two salts" on one that does not, as far as the tokens go; ``timed_rounds``: rounds of the other cases there.
    """

    rounds: int = 22
    timed_negatives: int = 100
    timed_rounds: int = 5


LEAST_TIMED_NEGATIVES = 20  # of "two salts": beside the first uses of all cases the tests of times find what is half apart
# Of a build that longer audits have proved, after a restart: every case once. Without reported tokens as many as the tests of times need.
RESTARTED = Sizes(rounds=0, timed_negatives=LEAST_TIMED_NEGATIVES)


def round_tokens(facts: Facts, block_tokens: int) -> int:
    """The most that trying every case once costs an engine that keeps its cache, before it is asked anything: by it a run may begin.

    Two prompts tell what the engine's tokenizer makes of our words; the others are cut to ``PROMPT_TOKENS``, about; and of a repeat an engine
    computes the last block again. A round that has to be repeated, because an answer was lost or looked like sharing, is not in it; nor is a chat
    template of many hundred tokens, or a tokenizer that makes more of a word than ``MOST_TOKENS_A_WORD``: what they cost the first two prompts tell.
    """
    probes = [probe for case in CASES for probe in case.plan(facts) or ()]
    repeats = sum(probe.expect is Expect.HIT for probe in probes)
    prompt_tokens = math.ceil(PROMPT_TOKENS * (1 + PROMPTS_DIFFER))
    return 2 * MOST_TOKENS_A_WORD * WORDS_A_PROMPT + (len(probes) - repeats) * prompt_tokens + repeats * block_tokens
