"""The sharing level, so that a wider and a narrower level never meet in one salt."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return subject.sharing.value


COMPONENT = Component(name="sharing", source="the endpoint's sharing level", value=value)
