"""The engine family: two families lay out blocks differently."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return subject.engine_family


COMPONENT = Component(name="engine", source="the endpoint's engine", value=value)
