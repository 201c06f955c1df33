"""What the simulated model says: pseudo-random sentences, the same for the same prompt."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from routing.simulator.submission import FinishReason
from routing.simulator.tokenizer import Tokenizer

_WORD_LIST = """
a about above across after again against all almost along already also although always among an and another any area around as at
available away balance because been before begin behind being below best better between block both branch bring build but by call
careful case cause change check choose clear close common compare complete consider contain correct cost could cover current data
day decide default depend describe detail different direct does done down during each early easy either else empty end enough entry
even every exact example expect explain fact fast few field file final find first follow for form found from full further general
give given good great group grow had half hand happen has have held help here high hold how however idea if important in increase
index inside instead into is issue it item its just keep kind know known large last later least leave left less level light like
limit line list little local long look low made main make many mark match matter may mean measure memory method middle might mind
model moment more most move much must name near need never new next no node normal not note nothing now number object of off often
old on once one only open or order other our out over own page part pass past path people perhaps place plan point policy possible
present press problem process produce proper prove public put question quick quite range rate rather reach read ready real reason
receive record region remain remove repeat reply report request rest result return right round route rule run same save second see
seem send sense sequence serve set several short should show side similar simple since single size slow small so some soon sound
source space speak stage stand start state step still stop store story strong such suit sum sure system table take talk task tell
term test than that the their them then there these they thing think this those though three through time to today together token
too top total toward track trade trace travel tree true try turn two type under unit until up upon use useful usual value very
view visit wait walk want was watch water way we week weight well went were what when where which while who whole why wide will
wish with within without word work world would write year yes yet you your
"""
WORDS = tuple(_WORD_LIST.split())
# Every word form an answer can contain, for a tokenizer that knows words only by their hash.
KNOWN_WORDS = (*WORDS, *(word.capitalize() for word in WORDS), ".")
_SENTENCE_WORDS = (5, 14)
_NATURAL_TOKENS_MEDIAN, _NATURAL_TOKENS_SIGMA = 90.0, 0.6


@dataclass(frozen=True, slots=True)
class Speech:
    """An answer: token ids, the text each adds, and why it ends."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    finish_reason: FinishReason
    stop_reason: str | None = None


def seed_of(token_ids: Sequence[int], *parts: object) -> int:
    """A seed from a prompt and whatever else should change the answer."""
    digest = hashlib.blake2b(repr((tuple(token_ids), parts)).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def speak(tokenizer: Tokenizer, seed: int, *, max_tokens: int, min_tokens: int = 0, ignore_eos: bool = False, stop: Sequence[str] = ()) -> Speech:
    """Say up to ``max_tokens`` tokens, at least one.

    The text is made first and tokenised as a whole, so that the same text sent back in the next turn has the same ids.
    Without ``ignore_eos`` the answer ends by itself after a log-normal number of tokens (median 90), its last token
    being the end-of-sequence token, which has no text. A stop string cuts the text before it.
    """
    rng = random.Random(seed)
    natural_tokens = max(1, min_tokens, int(rng.lognormvariate(0.0, _NATURAL_TOKENS_SIGMA) * _NATURAL_TOKENS_MEDIAN))
    wanted = max_tokens if ignore_eos else min(natural_tokens, max_tokens)
    pieces = tokenizer.pieces(_sentences(rng, wanted))[:wanted]
    ids, texts = [token_id for token_id, _ in pieces], [text for _, text in pieces]
    cut = _first_stop(texts, stop)
    if cut is not None:
        count, kept_characters, stop_string = cut
        joined = "".join(texts[:count])[:kept_characters]
        shown = [*texts[: count - 1], joined[len("".join(texts[: count - 1])) :]]
        return Speech(tuple(ids[:count]), tuple(shown), "stop", stop_string)
    if not ignore_eos and natural_tokens < max_tokens:
        return Speech((*ids, tokenizer.eos_id), (*texts, ""), "stop")
    return Speech(tuple(ids), tuple(texts), "length")


def _sentences(rng: random.Random, at_least_words: int) -> str:
    parts: list[str] = []
    words = 0
    while words <= at_least_words:
        length = rng.randint(*_SENTENCE_WORDS)
        chosen = rng.choices(WORDS, k=length)
        parts.append(" ".join([chosen[0].capitalize(), *chosen[1:]]) + ".")
        words += length
    return " ".join(parts)


def _first_stop(texts: Sequence[str], stop: Sequence[str]) -> tuple[int, int, str] | None:
    """Tokens up to the one that completes a stop string, characters before that string, and the string."""
    if not stop:
        return None
    said = ""
    for count, text in enumerate(texts, 1):
        said += text
        hits = [(said.find(string), string) for string in stop if string in said]
        if hits:
            position, string = min(hits)
            return count, position, string
    return None
