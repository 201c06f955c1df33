"""``python -m deploy.demo.make_tokenizer``: write the demo's ``tokenizer.json``, a small byte-level BPE vocabulary of our own.

It is learnt from sentences of the words that simulated engines speak, so that the demo's tokens look like those of a real model: common words are one
token, anything else falls apart into pieces, down to bytes. The same words give the same file.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from routing.simulator.language import WORDS

TARGET = Path(__file__).with_name("tokenizer.json")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 2048
SENTENCES = 4000
_PROSE = (
    "Salt keeps food, and a salt keeps caches apart: two tenants who send the same words never share a block.",
    "You are a helpful assistant. Answer briefly, and say so when you do not know.",
    "system user assistant tool tools name arguments content role description parameters type object string",
)


def sentences() -> Iterator[str]:
    """Text to learn from, the same each time."""
    chance = random.Random(20)
    for _ in range(SENTENCES):
        words = [chance.choice(WORDS) for _ in range(chance.randint(5, 14))]
        yield " ".join([words[0].capitalize(), *words[1:]]) + "."
    yield from _PROSE * 40


def train() -> str:
    """The tokenizer, as the text of a ``tokenizer.json``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    return tokenizer.to_str(pretty=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(train())
