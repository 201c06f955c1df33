"""Tokenizers (``tokenizer.json``): where a text may be cut so that its parts tokenise as the whole does, and tokenising the parts.

A tokenizer first takes its added tokens (such as ``<|im_start|>``) out of the text, the longest at the leftmost place; what lies between two of
them is normalised, split and merged by itself. So text cut at added tokens gives the same ids, as long as no added token looks at its neighbours
(``lstrip``, ``rstrip``, ``single_word``) and nothing depends on the place in the whole text (Metaspace with ``prepend_scheme: first``). Whether that
holds is read from the tokenizer's structure and then tried on samples; where it does not, the whole text is one part.

Source: the order of these steps in the ``tokenizers`` library (AddedVocabulary), version 0.23.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import tokenizers

from routing.prompts.types import MAX_ADDED_CHARACTERS, MAX_ADDED_TOKENS

Piece = str | int  # a part of the text, or the id of an added token

MAX_CUT_TOKENS = 4096
MAX_CUT_CHARACTERS = 128 * 1024
MAX_CUTS = (
    8192  # places in one text, some 4,000 messages: what comes after is one part, with the same ids. Each part costs the event loop microseconds
)
# Steps that look at one part alone. Anything else counts as unsound.
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace", "Prepend", "Strip", "StripAccents", "BertNormalizer", "Nmt", "Precompiled"}
_PRE_TOKENIZERS = {"ByteLevel", "Split", "Digits", "Whitespace", "WhitespaceSplit", "Punctuation", "BertPreTokenizer", "CharDelimiterSplit"}
_SAMPLES = ("", "a", " ", "\n", " a", "a ", "\n\nab\n", "  x  y", "don't", "1234 567", "é日本語", "\U0001f600", "e\u0301", "▁", "\t<|", "A\r\n")


class _Model(msgspec.Struct):
    dropout: float | None = None


class _Structure(msgspec.Struct):
    """What is read of a ``tokenizer.json``; the vocabulary is skipped."""

    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[dict[str, Any]] | None = None


_decode = msgspec.json.Decoder(_Structure).decode


class TokenizerRefused(Exception):
    """The content is no tokenizer that gives the same ids every time."""


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the preparing side must know; travels between processes as an object.

    ``cuts`` are the added tokens at which text may be cut (none if it may not be cut). ``prefix`` and ``suffix`` are the ids that special tokens add;
    ``framed`` says that they are all that special tokens do. ``bos`` is the text of a single id in front. ``added`` are all added tokens.
    """

    cuts: Mapping[str, int]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    framed: bool
    bos: str | None
    added: frozenset[str] = field(repr=False)

    def as_object(self) -> dict[str, Any]:
        return {
            "cuts": dict(self.cuts),
            "prefix": list(self.prefix),
            "suffix": list(self.suffix),
            "framed": self.framed,
            "bos": self.bos,
            "added": sorted(self.added),
        }

    @classmethod
    def from_object(cls, value: Mapping[str, Any]) -> TokenizerFacts:
        """From the other side of a pipe.

        Raises:
            TypeError, ValueError, KeyError: it is not what ``as_object`` makes.
        """
        bos, framed = value["bos"], value["framed"]
        if not isinstance(bos, str | None) or not isinstance(framed, bool):
            raise TypeError("facts")
        cuts = {_as(str, text): _as(int, token_id) for text, token_id in value["cuts"].items()}
        prefix, suffix = (tuple(_as(int, each) for each in value[name]) for name in ("prefix", "suffix"))
        array("I", [*cuts.values(), *prefix, *suffix])
        return cls(cuts, prefix, suffix, framed, bos, frozenset(_as(str, each) for each in value["added"]))


class Encoder:
    """A loaded tokenizer. Loading takes half a second for a large vocabulary and holds the interpreter's lock meanwhile."""

    def __init__(self, content: bytes) -> None:
        """Load a ``tokenizer.json``.

        Raises:
            TokenizerRefused: not a tokenizer, one with random dropout, or with more added tokens than are taken.
        """
        try:
            structure = _decode(content)
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except Exception:  # noqa: BLE001 - the library raises plain Exception
            raise TokenizerRefused from None
        if structure.model.dropout or _too_many(structure.added_tokens or ()):
            raise TokenizerRefused
        # Engines ignore what the file says of truncation and padding.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if hasattr(self._tokenizer.model, "_resize_cache"):
            self._tokenizer.model._resize_cache(0)  # the library's cache of words knows no namespaces: one could time another's words
        self.facts = self._facts(structure)
        self._pattern = cutter(self.facts.cuts)

    def cut(self, text: str, exact: int = -1, *, closed: bool = True) -> tuple[list[Piece], int]:
        """As ``cut``, at this tokenizer's added tokens."""
        return cut(text, self._pattern, self.facts.cuts, exact, closed=closed)

    def encode(self, segments: Iterable[str], *, add_special_tokens: bool = False) -> list[bytes]:
        """The ids of each segment, as unsigned 32-bit integers in this machine's order. The interpreter's lock is free meanwhile."""
        one = self._tokenizer.encode_batch_fast
        return [array("I", one([segment], add_special_tokens=add_special_tokens)[0].ids).tobytes() for segment in segments]

    def _ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _facts(self, structure: _Structure) -> TokenizerFacts:
        listed = [each for each in structure.added_tokens or () if each.get("content")]
        added = frozenset(each["content"] for each in listed)
        prefix, suffix = self._frame()
        framed = all(self._ids(text, add_special_tokens=True) == [*prefix, *self._ids(text), *suffix] for text in _SAMPLES)
        bos = self._tokenizer.id_to_token(prefix[0]) if framed and len(prefix) == 1 else None
        ids = {each["content"]: self._tokenizer.token_to_id(each["content"]) for each in listed if not each.get("normalized")}
        cuts = {content: token_id for content, token_id in ids.items() if token_id is not None}
        sound = _sound(structure, listed, cuts) and self._agrees(cuts)
        return TokenizerFacts(cuts if sound else {}, tuple(prefix), tuple(suffix), framed, bos, added)

    def _frame(self) -> tuple[list[int], list[int]]:
        """The ids in front and behind that special tokens add to a text of at least one token."""
        bare, full = self._ids("a"), self._ids("a", add_special_tokens=True)
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        return [], []

    def _agrees(self, cuts: Mapping[str, int]) -> bool:
        """Whether samples cut at added tokens give the ids of the whole."""
        pattern = cutter(cuts)
        tokens = sorted(cuts, key=len)
        chosen = tokens if len(tokens) <= 4 else [*tokens[:2], *tokens[-2:]]
        samples = [left + token + right for token in chosen[:1] for left, right in itertools.product(_SAMPLES, repeat=2)]
        samples += [text + token + text for token in chosen for text in _SAMPLES]
        samples += [a + b + c for a, b in itertools.product(chosen, repeat=2) for c in ("", " x")]
        return all(self._joined(cut(text, pattern, cuts)[0]) == self._ids(text) for text in samples)

    def _joined(self, pieces: Sequence[Piece]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            ids.extend([piece] if isinstance(piece, int) else self._ids(piece))
        return ids


def cutter(cuts: Mapping[str, int]) -> re.Pattern[str] | None:
    """The pattern that finds added tokens: of several at one place the longest. None when there is nothing to cut at."""
    if not cuts:
        return None
    return re.compile("(" + "|".join(re.escape(text) for text in sorted(cuts, key=len, reverse=True)) + ")")


def cut(text: str, pattern: re.Pattern[str] | None, cuts: Mapping[str, int], exact: int = -1, *, closed: bool = True) -> tuple[list[Piece], int]:
    """The text as parts and ids of added tokens, in order, and how many of these are exact when only the first ``exact`` characters are (-1: all).

    ``closed``: what follows the known text in truth is what follows it here, so that a part which ends there at an added token is exact.
    """
    parts = pattern.split(text, MAX_CUTS) if pattern is not None else [text]
    pieces: list[Piece] = []
    known = end = 0
    for place, part in enumerate(parts):
        if not part:
            continue
        pieces.append(cuts[part] if place % 2 else part)
        end += len(part)
        if end <= exact and (place % 2 or (closed and place + 1 < len(parts))):
            known = len(pieces)
    return pieces, len(pieces) if exact < 0 or exact >= len(text) else known


def _too_many(added: Sequence[Mapping[str, Any]]) -> bool:
    return len(added) > MAX_ADDED_TOKENS or sum(len(each.get("content") or "") for each in added) > MAX_ADDED_CHARACTERS


def _sound(structure: _Structure, listed: Sequence[Mapping[str, Any]], cuts: Mapping[str, int]) -> bool:
    looks_around = any(each.get(flag) for each in listed if not each.get("normalized") for flag in ("lstrip", "rstrip", "single_word"))
    too_many = len(cuts) > MAX_CUT_TOKENS or sum(map(len, cuts)) > MAX_CUT_CHARACTERS
    steps = all(step.get("type") in _NORMALIZERS for step in _steps(structure.normalizer, "normalizers"))
    return not looks_around and not too_many and steps and all(map(_sound_pre_tokenizer, _steps(structure.pre_tokenizer, "pretokenizers")))


def _sound_pre_tokenizer(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Metaspace":
        return step.get("prepend_scheme") in ("always", "never")
    return step.get("type") in _PRE_TOKENIZERS


def _steps(step: Any, inner: str) -> list[Mapping[str, Any]]:
    """A step, or the steps of a sequence of them."""
    if step is None:
        return []
    if step.get("type") == "Sequence":
        return [each for one in step.get(inner) or () for each in _steps(one, inner)]
    return [step]


def _as(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError("facts")
    return value
