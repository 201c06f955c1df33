"""Tokenizers and templates for tests: the demo's own files, and ones that mean harm."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

import msgspec
from tokenizers import Tokenizer

from deploy.local.options import REPOSITORY
from routing.core.snapshot import ArtifactRef, ModelEntry, TenantSnapshot
from tests.fakes.rig import bumped

DEMO = REPOSITORY / "deploy" / "demo"
TOKENIZER = (DEMO / "tokenizer.json").read_bytes()
TEMPLATE = (DEMO / "chat_template.jinja").read_bytes()

SMALL = b'{"version":"1.0","model":{"type":"WordLevel","vocab":{"x":0},"unk_token":"x"}}'  # as small as a tokenizer can be


def _harmful(**members: Any) -> bytes:
    """A tokenizer with members that mean harm."""
    return json.dumps({**json.loads(SMALL), **members}).encode()


REGEX = _harmful(pre_tokenizer={"type": "Split", "pattern": {"Regex": "^(a+)+$"}, "behavior": "Isolated", "invert": False})
EXPANSION = _harmful(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 2**23})
RANGE = b"{% for one in range(10**9) %}{{ one }}{% endfor %}"
ENDLESS = b"{% for one in range(99999) %}{% for two in range(99999) %}{% endfor %}{% endfor %}"
GIGABYTE = b"{{ 'x' * 10**9 }}{% for one in range(99999) %}{{ 'y' * 99999 }}{% endfor %}"


def digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def model(tokenizer: bytes | None = TOKENIZER, template: bytes | None = TEMPLATE) -> ModelEntry:
    """A model that names artifacts by their content."""
    refs = [ArtifactRef(digest=None if content is None else digest(content)) for content in (tokenizer, template)]
    return ModelEntry(name="m-7b", revision="r1", tokenizer=refs[0], chat_template=refs[1])


def naming(document: TenantSnapshot, tokenizer: bytes | None = TOKENIZER, template: bytes | None = TEMPLATE) -> TenantSnapshot:
    """The next version of a snapshot, in which every endpoint names the artifacts."""
    named = model(tokenizer, template)
    return bumped(document, endpoints=tuple(msgspec.structs.replace(one, model=named) for one in document.endpoints))


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_str(TOKENIZER.decode())


def ids_of(text: str) -> list[int]:
    """The demo tokenizer's ids of a text."""
    return list(_tokenizer().encode(text, add_special_tokens=False).ids)


def chatml(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str:
    """What the demo's template makes of a conversation, written here a second time."""
    head = f"<|im_start|>tools\n{json.dumps(tools, ensure_ascii=False)}<|im_end|>\n" if tools else ""
    turns = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
    return f"{head}{turns}<|im_start|>assistant\n"
