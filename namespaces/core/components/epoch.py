"""Epoch of the tenant and of the endpoint; an operator raises either to leave all old blocks behind."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return list(subject.epoch)


COMPONENT = Component(name="epoch", source="the tenant's and the endpoint's epoch", value=value)
