"""The tenant that owns the request, as 16 raw bytes. Always present."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return subject.tenant_id.bytes


COMPONENT = Component(name="tenant", source="the key that authenticated the request", value=value)
