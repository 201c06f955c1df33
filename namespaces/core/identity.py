"""The cache identity: a canonical, injective, versioned encoding of a subject.

Encoding: deterministic CBOR (RFC 8949, 4.2.1) of ``[schema, [[name, value], ...]]`` in the order of the register. Each value travels with its
component's name and CBOR prefixes every length, so no two different subjects share an encoding: nothing is joined as text.
An absent component is left out, a null one is encoded as null, and an empty text as an empty text. Unicode is encoded as given.
"""

from __future__ import annotations

import cbor2

from namespaces.core.component import Absent, Value
from namespaces.core.components import COMPONENTS
from namespaces.core.subject import Subject

SCHEMA = 1


def parts(subject: Subject) -> list[tuple[str, Value]]:
    """The (component, value) pairs that count for ``subject``, in encoding order, absent ones left out.

    Raises:
        ValueError: the subject contradicts itself, such as sharing level ``key`` without a key.
    """
    pairs = [(component.name, component.value(subject)) for component in COMPONENTS]
    return [(name, value) for name, value in pairs if not isinstance(value, Absent)]


def encode(subject: Subject) -> bytes:
    """The canonical bytes of ``subject`` (a few hundred bytes). Not secret, but never logged: they name scopes and versions.

    Raises:
        ValueError: as :func:`parts`, or a text cannot be encoded as UTF-8 (a lone surrogate).
    """
    try:
        return cbor2.dumps([SCHEMA, [[name, value] for name, value in parts(subject)]], canonical=True)
    except UnicodeEncodeError as error:
        raise ValueError("identity text is not valid Unicode") from error
