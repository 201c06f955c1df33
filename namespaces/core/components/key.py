"""The API key, where each key keeps its own cache."""

from __future__ import annotations

from namespaces.core.component import ABSENT, Component, Value
from namespaces.core.subject import Sharing, Subject


def value(subject: Subject) -> Value:
    if subject.sharing in (Sharing.TENANT, Sharing.SCOPE):
        return ABSENT
    if subject.key_id is None:
        raise ValueError("sharing level key or none needs a key id")
    return subject.key_id.bytes


COMPONENT = Component(name="key", source="the key that authenticated the request, at sharing level key or none", value=value)
