"""Small tokenizers in the manner of real ones, trained here on a few lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Hello, how are you? user assistant system tool",
    "def f(x):\n\treturn [i ** 2 for i in range(x)]  # don't",
    "東京の天気はどうですか。今日は晴れ。 한국어 é ß \U0001f600",
    '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}',
]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHATML_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<tool_call>",
    "<|im|>",
    "<|im|>>",
]
HEADER_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


@dataclass(frozen=True, slots=True)
class Artifact:
    """Content and its SHA-256."""

    content: bytes
    digest: bytes


def artifact(content: bytes | str) -> Artifact:
    raw = content.encode() if isinstance(content, str) else content
    return Artifact(raw, hashlib.sha256(raw).digest())


def _byte_level(tokens: list[str | AddedToken]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens(tokens)
    return tokenizer


def with_bos(tokenizer: Tokenizer, bos: str) -> Tokenizer:
    """The tokenizer with a BOS in front of a text: some copies of a model's tokenizer come without."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


@cache
def qwen_like() -> Artifact:
    """Byte-level BPE, NFC, no BOS; one added token is the beginning of another."""
    tokenizer = _byte_level(list(CHATML_TOKENS))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return artifact(tokenizer.to_str())


@cache
def llama_like() -> Artifact:
    """Byte-level BPE with a BOS in front."""
    return artifact(with_bos(_byte_level(list(HEADER_TOKENS)), HEADER_TOKENS[0]).to_str())


@cache
def stripping() -> Artifact:
    """An added token that takes the white space before it along: no place to cut."""
    return artifact(_byte_level(["<|im_start|>", AddedToken("<|im_end|>", lstrip=True, special=True)]).to_str())


@cache
def single_word() -> Artifact:
    """An added token that counts between word boundaries only."""
    return artifact(_byte_level(["<|im_start|>", AddedToken("stop", single_word=True, special=True)]).to_str())


@cache
def normalized() -> Artifact:
    """An added token that is looked for in the normalised text, beside one that is not."""
    tokenizer = _byte_level(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("Hello", normalized=True)])
    tokenizer.normalizer = normalizers.Lowercase()
    return artifact(tokenizer.to_str())


def _metaspace(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


@cache
def first_metaspace() -> Artifact:
    """A space is put in front of the very first word alone: what follows depends on its place."""
    return artifact(_metaspace("first").to_str())


@cache
def every_metaspace() -> Artifact:
    """A space is put in front of each part."""
    return artifact(_metaspace("always").to_str())


@cache
def dropout() -> Artifact:
    """Merges left out at random."""
    value = json.loads(qwen_like().content)
    value["model"]["dropout"] = 0.1
    return artifact(json.dumps(value))


@cache
def catastrophic() -> Artifact:
    """A pattern whose time doubles with each letter of a line. The library gives up on a line of forty, not on many lines of twenty-six."""
    value: dict[str, Any] = json.loads(qwen_like().content)
    value["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": r"^(([a-z])+.)+[A-Z]([a-z])+$"}, "behavior": "Isolated", "invert": False}
    return artifact(json.dumps(value))


SOUND: dict[str, Callable[[], Artifact]] = {
    "qwen-like": qwen_like, "llama-like": llama_like, "normalized": normalized, "every metaspace": every_metaspace
}  # fmt: skip
UNSOUND: dict[str, Callable[[], Artifact]] = {"stripping": stripping, "single word": single_word, "first metaspace": first_metaspace}
