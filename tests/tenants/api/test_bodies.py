"""Strict bodies: what is not understood is refused by its name, and nothing is coerced."""

from __future__ import annotations

import enum
import io
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import UNSET, UnsetType
from rest_framework.exceptions import ParseError

from tenants.api.bodies import Body, Moment, StrictJsonParser, convert
from tenants.api.errors import TooLarge
from tenants.core.errors import Invalid
from tests.tenants.houses import House


class Inner(Body):
    port: int


class Level(enum.Enum):
    HIGH = "high"
    LOW = "low"


class Chosen(Body):
    colour: Literal["red", "green"]
    level: Level | UnsetType | None = UNSET
    rules: list[Annotated[Literal["allow", "deny"], msgspec.Meta(description="Of a rule.")] | None] = []
    named: dict[str, list[Literal["one"]]] = {}


class Outer(Body):
    name: str
    flag: bool = False
    at: Moment | None = None
    inner: list[Inner] = []


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "name"),
        ({"name": 1}, "name"),
        ({"name": "x", "flag": "true"}, "flag"),
        ({"name": "x", "flag": 1}, "flag"),
        ({"name": "x", "at": "2026-01-01"}, "at"),
        ({"name": "x", "inner": [{"port": 1}, {}]}, "inner[1].port"),
        ({"name": "x", "inner": [{"port": "1"}]}, "inner[0].port"),
        ({"name": "x", "inner": [{"port": 1, "prot": 2}]}, "inner[0].prot"),
        ({"name": "x", "nmae": "y"}, "nmae"),
        ([], None),
        ("text", None),
        (None, None),
    ],
)
def test_the_field_at_fault_is_named(value: object, field: str | None) -> None:
    """By its path, also inside lists."""
    with pytest.raises(Invalid) as refusal:
        convert(value, Outer)
    assert refusal.value.field == field
    assert "`" not in refusal.value.message


def test_an_unknown_field_is_told_the_known_ones() -> None:
    """So that a typo is found."""
    with pytest.raises(Invalid, match="name, flag, at, inner"):
        convert({"name": "x", "nmae": "y"}, Outer)


@pytest.mark.parametrize(
    ("value", "field", "words"),
    [
        ({"colour": "Red"}, "colour", "green, red"),
        ({"colour": "red", "level": "top"}, "level", "high, low"),
        ({"colour": "red", "rules": ["allow", "drop"]}, "rules[1]", "allow, deny"),
        ({"colour": "red", "named": {"a.b[0]": ["two"]}}, "named[...][0]", "one"),
    ],
)
def test_a_word_that_is_none_of_a_list_is_told_the_list(value: object, field: str, words: str) -> None:
    """At any depth; what is no word at all is told that a text is expected."""
    with pytest.raises(Invalid) as refusal:
        convert(value, Chosen)
    assert (refusal.value.field, refusal.value.message) == (field, f"Use one of: {words}.")
    with pytest.raises(Invalid, match="Expected str, got int"):
        convert({"colour": 1}, Chosen)
    assert convert({"colour": "red", "level": "low", "rules": ["deny", None], "named": {"a": ["one"]}}, Chosen).level is Level.LOW


def _parse(raw: bytes, limit_bytes: int = 1000) -> Any:
    return StrictJsonParser().parse(io.BytesIO(raw), None, {"view": SimpleNamespace(max_body_bytes=limit_bytes)})


@pytest.mark.parametrize("raw", [b"{", b"NaN", b"[Infinity]", b"\xff", b'{"a":"\\ud800"}', b'{"a\\u0000":1}', b'["\\u0000"]', b'"\0"', b""])
def test_what_is_not_json_or_cannot_be_stored_is_refused(raw: bytes) -> None:
    """NaN, lone surrogates, NUL, truncated and empty."""
    with pytest.raises(ParseError):
        _parse(raw)


def test_a_backslash_before_u0000_is_text() -> None:
    """Only the character itself is refused, not the six letters."""
    assert _parse(b'["\\\\u0000"]') == ["\\u0000"]


def test_depth_and_size_are_bounded() -> None:
    """A refusal each, no crash."""
    with pytest.raises(ParseError, match="deeply"):
        _parse(b"[" * 100_000, limit_bytes=200_000)
    assert _parse(b'"' + b"a" * 998 + b'"')
    with pytest.raises(TooLarge):
        _parse(b'"' + b"a" * 999 + b'"')


def test_over_the_wire(acorn: House) -> None:
    """Malformed JSON, a wrong content type and a body beyond the bound answer 400, 415 and 413 in our shape."""
    api = acorn.api()
    malformed = api.call("POST", "keys", raw=b"{name")
    assert (malformed.status_code, malformed.json()["error"]["code"]) == (400, "malformed")
    form = api.client.post("/api/v1/keys", {"name": "x"}, headers={"Authorization": f"Bearer {api.token}"})
    assert (form.status_code, form.json()["error"]["code"]) == (415, "unsupported_media_type")
    large = api.call("POST", "keys", raw=b'{"name": "' + b"a" * 1024 * 1024 + b'"}')
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
