"""The port of an identity component: a name and a pure function from the subject to an encodable value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Union

from namespaces.core.subject import Subject


class Absent(Enum):
    """The component does not apply; it adds nothing to the encoding. Differs from None, which is encoded as null."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT

Value = Union[None, bool, int, str, bytes, list["Value"], Absent]  # lists nest; numbers are whole


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the identity.

    ``source`` says in words where the value comes from (shown by ``namespace explain``); ``since`` is the schema version that brought it.
    """

    name: str
    source: str
    value: Callable[[Subject], Value]
    since: int = 1
