"""Which build an engine is: what it says of itself, reduced to one digest, so that a change of version, model or cache settings is seen.

Left out on purpose: what differs between two starts of one build (how many blocks fitted, times, permissions) and what changes while it runs
(adapters, which the list of models names as children).
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Any

import msgspec

MAX_MODELS = 256
MAX_CHARACTERS = 200
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
_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE)
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


def read_version(body: bytes) -> str:
    """The version from GET /version; ABSENT where it is none."""
    said = _object(body).get("version")
    return said[:MAX_CHARACTERS] if isinstance(said, str) else ABSENT


def read_models(body: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Base models (with their roots) and all served names, from GET /v1/models."""
    data = _object(body).get("data")
    rows = [row for row in data[:MAX_MODELS] if isinstance(row, dict) and isinstance(row.get("id"), str)] if isinstance(data, list) else []
    base = tuple(f"{row['id']}\n{row.get('root')}"[:MAX_CHARACTERS] for row in rows if row.get("parent") is None)
    return base, tuple(row["id"][:MAX_CHARACTERS] for row in rows)


def read_adapters(body: bytes) -> tuple[frozenset[str], bool]:
    """The names among them that are adapters (rows with a parent), and whether :func:`read_models` could keep every name whole."""
    data = _object(body).get("data")
    rows = data if isinstance(data, list) else []
    kept = [row for row in rows[:MAX_MODELS] if isinstance(row, dict) and isinstance(row.get("id"), str)]
    adapters = frozenset(row["id"] for row in kept if isinstance(row.get("parent"), str) and len(row["id"]) <= MAX_CHARACTERS)
    return adapters, 0 < len(rows) == len(kept) and all(len(row["id"]) <= MAX_CHARACTERS for row in kept)


def read_settings(page: bytes) -> tuple[str, int | None]:
    """Cache settings and block size in tokens, from the metrics page. Several data-parallel engines say the same."""
    found = _CONFIG.search(page)
    if found is None:
        return ABSENT, None
    labels = {name.decode(): value.decode("utf-8", "replace") for name, value in _LABEL.findall(found[1])}
    size = labels.get("block_size", "")
    kept = {name: labels[name] for name in _LABELS if name in labels}
    return msgspec.json.encode(kept).decode(), int(size) if size.isascii() and size.isdigit() and 0 < int(size) <= 1_000_000 else None


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}
