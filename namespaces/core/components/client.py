"""The client's own cache_salt: it subdivides its own namespace and can never leave it. Empty text differs from none."""

from __future__ import annotations

from namespaces.core.component import ABSENT, Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return ABSENT if subject.client_subdivision is None else subject.client_subdivision


COMPONENT = Component(name="client", source="the request's cache_salt, where the endpoint allows it", value=value)
