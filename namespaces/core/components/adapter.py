"""Adapter name, revision and reload generation; null is the base model."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    adapter = subject.adapter
    return None if adapter is None else [adapter.name, adapter.revision, adapter.generation]


COMPONENT = Component(name="adapter", source="the endpoint's adapter", value=value)
