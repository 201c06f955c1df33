"""Request bodies: strict JSON into typed structs. What is misspelt, of the wrong type or unknown is refused with the name of the field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import IO, Annotated, Any, TypeVar

import msgspec
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from tenants.api.errors import TooLarge
from tenants.core.errors import Invalid

MAX_BODY_BYTES = 1024 * 1024  # of a JSON body, unless the view sets its own max_body_bytes
Moment = Annotated[datetime, msgspec.Meta(tz=True, description="RFC 3339 with a time zone")]
_NO_SUCH_WORD = "Invalid enum value "
_STEP = re.compile(r"\[[^]]*\]|[^.\[]+")
_PLACE = re.compile(r" - at `\$(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")

T = TypeVar("T")


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """Base of every request body: unknown fields are refused, nothing is coerced."""


class StrictJsonParser(BaseParser):
    """JSON with a bound: no NaN, no lone surrogates, no NUL characters (PostgreSQL cannot store them)."""

    media_type = "application/json"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> Any:  # noqa: ARG002 - DRF's signature
        """Decode the whole body into dicts, lists and scalars."""
        limit_bytes = getattr((parser_context or {}).get("view"), "max_body_bytes", MAX_BODY_BYTES)
        raw = stream.read(limit_bytes + 1)
        if len(raw) > limit_bytes:
            raise TooLarge(f"The body is larger than {limit_bytes} bytes.")
        try:
            value = msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            raise ParseError(f"This is not JSON: {error}.") from None
        except RecursionError:
            raise ParseError("This JSON is nested too deeply.") from None
        if b"\\u0000" in raw and any("\0" in text for text in _texts(value)):
            raise ParseError("NUL characters are not allowed.")
        return value


def receive(request: Request, limit_bytes: int) -> None:
    """Take in the whole body as it comes, before it is parsed, so that no transaction is open while a client is slow. One byte more than the bound
    is read at most; the parser then refuses it.
    """
    sent: Any = request._request  # Django's request, which DRF offers under no other name
    if not sent._read_started:
        sent._body = sent.read(limit_bytes + 1)  # where Django itself keeps a body that was read


def parse(request: Request, body: type[T]) -> T:
    """The body of ``request`` as ``body``; an absent body is an empty object.

    Raises:
        Invalid: wrong type, missing or unknown field; ``field`` names it.
    """
    return convert(request.data, body)


def convert(value: Any, body: type[T]) -> T:
    """Plain JSON data as ``body``; see :func:`parse`."""
    try:
        return msgspec.convert(value, body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), body) from None


def _invalid(text: str, body: type) -> Invalid:
    place = _PLACE.search(text)
    path = place[1].lstrip(".") if place else ""
    text = _PLACE.sub("", text)
    if unknown := _UNKNOWN.match(text):
        known = "" if path or not issubclass(body, msgspec.Struct) else f" Known are: {', '.join(body.__struct_encode_fields__)}."
        return Invalid(f"Unknown field.{known}", field=_join(path, unknown[1]))
    if missing := _MISSING.match(text):
        return Invalid("This field is required.", field=_join(path, missing[1]))
    if text.startswith(_NO_SUCH_WORD) and (words := _words(body, path)):
        return Invalid(f"Use one of: {', '.join(words)}.", field=path or None)
    return Invalid(text.replace("`", "") + ".", field=path or None)


def _words(body: type, path: str) -> list[str]:
    """The words that may stand at a path of a body, such as ``kind`` or ``rules[0].kind``; none where no fixed list says."""
    types = _alternatives(msgspec.inspect.type_info(body))
    for step in _STEP.findall(path):
        types = [found for one in types for inner in _inside(one, step) for found in _alternatives(inner)]
    return [str(word) for one in types for word in _members(one)]


def _alternatives(node: Any) -> list[Any]:
    if isinstance(node, msgspec.inspect.Metadata):
        return _alternatives(node.type)
    return [found for one in node.types for found in _alternatives(one)] if isinstance(node, msgspec.inspect.UnionType) else [node]


def _inside(node: Any, step: str) -> list[Any]:
    """What stands at one step into a type: a field's name, or ``[0]`` of a list and ``[...]`` of a mapping."""
    if not step.startswith("["):
        return [field.type for field in getattr(node, "fields", ()) if field.encode_name == step]
    return [inner for name in ("item_type", "value_type") if (inner := getattr(node, name, None)) is not None]


def _members(node: Any) -> Iterable[Any]:
    if isinstance(node, msgspec.inspect.EnumType):
        return [member.value for member in node.cls]
    return node.values if isinstance(node, msgspec.inspect.LiteralType) else ()


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _texts(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
