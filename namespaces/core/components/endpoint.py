"""The endpoint, only where it keeps its cache apart: alias and canary endpoints of one model share otherwise."""

from __future__ import annotations

from namespaces.core.component import ABSENT, Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return ABSENT if subject.endpoint_id is None else subject.endpoint_id.bytes


COMPONENT = Component(name="endpoint", source="the endpoint, if it is declared as keeping its cache apart", value=value)
