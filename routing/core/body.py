"""A JSON request body: read as a copy, edited with minimal change.

Two parsers that disagree are a way round every rule, so a body is refused unless it reads the same to all: strict UTF-8 and JSON, no NaN, no lone
surrogates (engines refuse them too), and no member named twice at any depth. Editing works on the top-level members as raw bytes: each member
that is not
ours to change stays byte-identical, and the order stays.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from routing.core.engine import Engine

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class BodyError(ValueError):
    """A body that cannot be read safely. ``param`` names the member at fault, where there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class SaltError(Exception):
    """The edited body does not carry exactly our salt: it must not be sent."""


@dataclass(frozen=True, slots=True)
class Body:
    """``value`` is the parsed copy; ``members`` are the top-level members as they were written."""

    value: dict[str, Any]
    members: dict[str, msgspec.Raw]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                shown = name if len(name) <= 64 and name.isprintable() else "a member"
                raise BodyError(f"Duplicate JSON key: {shown!r}.", shown)
            seen.add(name)
    return value


def _no_constant(text: str) -> NoReturn:
    raise BodyError(f"{text} is not JSON.")


# A value costs up to a hundred bytes once it is read. Counted by its signs in the raw bytes, before anything is built; signs inside texts count too.
MAX_VALUES = 1_000_000
VALUE_BYTES = 64  # of memory for one sign, as an empty object takes
_reader = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def signs(raw: bytes) -> int:
    """At most how many values a body holds, nearly: commas and opening brackets, those inside texts too."""
    return raw.count(b",") + raw.count(b"{") + raw.count(b"[")


def read(raw: bytes) -> Body:
    """Read a body.

    Raises:
        BodyError: not UTF-8, not JSON, not an object, nested too deeply, a lone surrogate, a member named twice, or more than ``MAX_VALUES`` values.
    """
    if len(raw) > MAX_VALUES and signs(raw) > MAX_VALUES:
        raise BodyError(f"The request body holds more than {MAX_VALUES} values.")
    try:
        members = _members.decode(raw)
        value = _reader.decode(raw.decode())
    except msgspec.ValidationError:
        raise BodyError("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BodyError("The request body is not valid JSON.") from None
    except RecursionError:
        raise BodyError("The request body is nested too deeply.") from None
    except BodyError:
        raise
    except ValueError:  # such as an integer of five thousand digits
        raise BodyError("The request body holds a value that cannot be read.") from None
    return Body(value=value, members=members)


def _without(raw: msgspec.Raw, names: Iterable[str]) -> bytes:
    """An object member without some of its members; anything but an object is left alone."""
    try:
        inner = _members.decode(raw)
    except msgspec.ValidationError:
        return bytes(raw)
    if not any(name in inner for name in names):
        return bytes(raw)
    return _join((name, bytes(value)) for name, value in inner.items() if name not in names)


def _join(members: Iterable[tuple[str, bytes]]) -> bytes:
    parts = [b"{"]
    for name, value in members:
        parts += (_encode(name), b":", value, b",")
    parts[len(parts) - 1 if len(parts) > 1 else 1 :] = [b"}"]
    return b"".join(parts)  # in one go: a member may be megabytes long


def _stream_options(raw: msgspec.Raw | None, *, asked: bool) -> bytes:
    """The client's stream options with ``include_usage`` on. Options that only show with usage are dropped if the client did not ask for usage."""
    inner = {} if raw is None or bytes(raw) == b"null" else {name: bytes(value) for name, value in _members.decode(raw).items()}
    inner["include_usage"] = b"true"
    if not asked:
        inner.pop("continuous_usage_stats", None)
    return _join(inner.items())


def asks_usage(value: dict[str, Any]) -> bool:
    """Whether the client itself asked for the usage chunk of a stream."""
    options = value.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _with(raw: bytes, name: str, value: str) -> bytes:
    """An object member with one member more, or another value of it; null counts as empty, anything else but an object is left alone."""
    try:
        inner = {} if raw == b"null" else {known: bytes(written) for known, written in _members.decode(raw).items()}
    except msgspec.ValidationError:
        return raw
    return _join({**inner, name: value.encode()}.items())


def edit(
    body: Body,
    *,
    engine: Engine,
    salt: str,
    served_model: str,
    full_report: bool = False,
    written: Mapping[str, bytes] | None = None,
    left_out: Collection[str] = (),
    transfer: bytes | None = None,
) -> bytes:
    """The bytes for the engine: what clients may not set taken out, the served model's name and the salt put in.

    Streams always report usage; when the client did not ask, the relay hides that chunk again. ``full_report`` asks the engine, where it knows how,
    to report every cached block that the request reuses. ``written`` members (name to raw JSON) replace the client's, ``left_out`` ones go.
    ``transfer`` is the raw JSON of the engine's transfer field, which is always ours or absent.

    Raises:
        SaltError: the result does not carry exactly our salt (a mistake of ours).
    """
    ours = dict(written or {})
    streams = body.value.get("stream") is True and "stream" not in ours
    forced = engine.forced.keys()
    edited: dict[str, bytes] = {}
    for name, raw in body.members.items():
        if name in engine.stripped or name in forced or name == engine.salt_field or name in left_out or name in ours:
            continue
        if name == "model":
            edited[name] = _encode(served_model)
        elif name == "stream_options" and streams:
            edited[name] = _stream_options(raw, asked=asks_usage(body.value))
        elif name in engine.stripped_inside:
            edited[name] = _without(raw, engine.stripped_inside[name])
        else:
            edited[name] = bytes(raw)
    if streams and "stream_options" not in edited:
        edited["stream_options"] = _stream_options(None, asked=False)
    edited |= ours
    for name, raw_json in engine.forced.items():
        edited[name] = raw_json.encode()
    if full_report and engine.full_report is not None:
        member, name, raw_json = engine.full_report
        edited[member] = _with(edited.get(member, b"null"), name, raw_json)
    if transfer is not None and engine.transfer_field is not None:
        edited[engine.transfer_field] = transfer
    if engine.salt_field is not None:
        edited[engine.salt_field] = _encode(salt)
    outgoing = _join(edited.items())
    check_salt(outgoing, engine=engine, salt=salt, members=len(edited), transfer=transfer)
    return outgoing


def check_salt(outgoing: bytes, *, engine: Engine, salt: str, members: int, transfer: bytes | None = None) -> None:
    """Read the bytes again, as the engine will: exactly our salt at its one place, the transfer that we wrote or none, nothing named twice, nothing
    stripped still there.

    Raises:
        SaltError: they do not.
    """
    seen = _members.decode(outgoing)
    carried = seen.get(engine.salt_field) if engine.salt_field is not None else None
    expected = None if engine.salt_field is None else _encode(salt)
    ours = (None if carried is None else bytes(carried)) == expected
    ours_too = {engine.salt_field, *engine.forced}
    handed = seen.get(engine.transfer_field) if engine.transfer_field is not None else None
    if transfer is not None:
        ours_too.add(engine.transfer_field)
    moved = (None if handed is None else bytes(handed)) == transfer
    left = [name for name in engine.stripped if name in seen and name not in ours_too]
    if not ours or not moved or not salt or len(seen) != members or left:
        raise SaltError("outgoing body does not carry exactly our salt")
