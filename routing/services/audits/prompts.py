"""Prompts of probes: words in random order, so that no prompt and no beginning of one was ever sent before."""

from __future__ import annotations

from random import Random

WORDS_A_PROMPT = 1040  # each is a token or more, so at least 1,024 tokens and 64 blocks of 16
# Short words, most of them one token in common vocabularies. Two prompts begin with the same block of 16 once in 2**126 times.
_TEXT = """
able acid aged also area army away baby back ball band bank base bath bear beat been beer bell belt best bill bird blow blue boat body bomb
bond bone book boom born boss both bowl bulk burn bush busy call calm came camp card care case cash cast cell chat chip city club coal coat
code cold come cook cool cope copy core cost crew crop dark data date dawn days dead deal dean dear debt deep deny desk dial diet disc disk
does done door dose down draw drew drop drug dual duke dust duty each earn ease east easy edge else even ever evil exit face fact fail fair
fall farm fast fate fear feed feel feet fell felt file fill film find fine fire firm fish five flat flow food foot ford form fort four free
from fuel full fund gain game gate gave gear gene gift girl give glad goal goes gold golf gone good gray grew grey grow gulf hair half hall
hand hang hard harm hate have head hear heat held hell help here hero high hill hire hold hole holy home hope host hour huge hung hunt hurt
idea inch into iron item jack jane jean john join jump jury just keen keep kent kept kick kill kind king knee knew know lack lady laid lake
land lane last late lead left less life lift like line link list live load loan lock logo long look lord
"""
WORDS = tuple(_TEXT.split())

LEAST_WORDS = WORDS_A_PROMPT // 4  # whatever an engine says of its tokens
PROMPT_TOKENS = 1100  # aimed at: words differ, and what was measured held a chat's template too, so some come out at a twentieth less
PROMPTS_DIFFER = 0.05  # so much more than aimed at a prompt may be
MOST_TOKENS_A_WORD = 3  # in a vocabulary that has hardly any of them whole


def words_for(prompt_tokens: int) -> int:
    """How many words make a prompt of PROMPT_TOKENS where WORDS_A_PROMPT made one of ``prompt_tokens``; never more words than those."""
    return min(WORDS_A_PROMPT, max(LEAST_WORDS, -(-WORDS_A_PROMPT * PROMPT_TOKENS // max(1, prompt_tokens))))


def prompt(rng: Random, words: int = WORDS_A_PROMPT) -> str:
    """One prompt. ``rng`` must not be seeded by anything that another run shares."""
    return " ".join(rng.choices(WORDS, k=words))
