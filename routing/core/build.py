"""Which build an engine is: what it says of itself, reduced to one digest, so that a change of version, model or cache settings is seen.

Left out on purpose: what differs between two starts of one build (how many blocks fitted, times, permissions) and what changes while it runs
(adapters, which the list of models names as children).
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

MAX_MODELS = 256
MAX_CHARACTERS = 200
MAX_SIGNS = 65_536  # commas, brackets and braces of a list of models: vLLM has 23 a model
MAX_ROW_BYTES = 16 * 1024  # of the metrics page; vLLM's has 1,500
T = TypeVar("T")
ABSENT = ""  # asked, and the engine does not say
# Of vLLM's cache_config_info: what decides how blocks are cut, hashed and kept.
_LABELS = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "hash_block_size",
    "kv_offloading_backend",
    "kv_offloading_size",
    "mamba_cache_mode",
    "prefix_caching_hash_algo",
    "sliding_window",
)
_CONFIG = b"vllm:cache_config_info{"
_LABEL = re.compile(rb'(?:^|,)(\w+)="([^"\n]{0,200})"')


@dataclass(slots=True)
class Facts:
    """What was read so far. None: not asked yet, or no answer came; :data:`ABSENT`: the engine has no such page."""

    version: str | None = None
    models: tuple[str, ...] | None = None  # base models, with where they came from
    served: tuple[str, ...] = ()  # every name it answers to, adapters among them
    adapters: frozenset[str] = frozenset()  # those of them that are adapters of another
    lists_all: bool = False  # ``served`` is the whole list
    listed_s: float = -math.inf  # monotonic; when it was read
    settings: str | None = None
    block_tokens: int | None = None

    def digest(self, family: str) -> str | None:
        """The build, as 32 hexadecimal digits; None until every page was asked for, or if none says anything."""
        if self.version is None or self.models is None or self.settings is None:
            return None
        if not (self.version or self.models or self.settings):
            return None
        said = msgspec.json.encode([family, self.version, sorted(self.models), self.settings])
        return hashlib.sha256(said).hexdigest()[:32]


class _Version(msgspec.Struct):
    version: str = ABSENT


class _List(msgspec.Struct):
    data: list[msgspec.Raw] = []


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    owned_by: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Listed:
    """What an engine serves, from GET /v1/models."""

    base: tuple[str, ...] = ()  # base models, with where they came from
    served: tuple[str, ...] = ()  # all names
    adapters: frozenset[str] = frozenset()  # the names of rows with a parent
    whole: bool = False  # every row was read, and every name could be kept whole
    owner: str | None = None  # of the first model: some engines say there what they are


_version = msgspec.json.Decoder(_Version)
_list = msgspec.json.Decoder(_List)
_model = msgspec.json.Decoder(_Model)
_text = msgspec.json.Decoder(str)


def read_version(body: bytes) -> str:
    """The version from GET /version; ABSENT where it is none."""
    said = _read(_version, body)
    return ABSENT if said is None else said.version[:MAX_CHARACTERS]


def read_models(body: bytes) -> Listed:
    """The list from GET /v1/models; an empty one where it is none, or has more than ``MAX_SIGNS``."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_SIGNS:
        return Listed()
    said = _read(_list, body)
    rows = [] if said is None else said.data
    kept = [row for row in (_read(_model, row) for row in rows[:MAX_MODELS]) if row is not None]
    return Listed(
        base=tuple(f"{row.id}\n{row.root}"[:MAX_CHARACTERS] for row in kept if row.parent is None),
        served=tuple(row.id[:MAX_CHARACTERS] for row in kept),
        adapters=frozenset(row.id for row in kept if row.parent is not None and len(row.id) <= MAX_CHARACTERS),
        whole=0 < len(rows) == len(kept) and all(len(row.id) <= MAX_CHARACTERS for row in kept),
        owner=_read(_text, kept[0].owned_by) if kept else None,
    )


def read_settings(page: bytes) -> tuple[str, int | None]:
    """Cache settings and block size in tokens, from the metrics page. Several data-parallel engines say the same."""
    start = 0 if page.startswith(_CONFIG) else page.find(b"\n" + _CONFIG) + 1
    end = page.find(b"\n", start, start + MAX_ROW_BYTES)
    row = page[start : end if end >= 0 else start + MAX_ROW_BYTES]
    if not row.startswith(_CONFIG) or b"}" not in row:
        return ABSENT, None
    labels = {name.decode(): value.decode("utf-8", "replace") for name, value in _LABEL.findall(row[len(_CONFIG) : row.rindex(b"}")])}
    size = labels.get("block_size", "")
    kept = {name: labels[name] for name in _LABELS if name in labels}
    return msgspec.json.encode(kept).decode(), int(size) if size.isascii() and size.isdigit() and 0 < int(size) <= 1_000_000 else None


def _read(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T | None:
    """Only what is looked for is built: a page of four megabytes may have a million values, and building them would hold up requests."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
