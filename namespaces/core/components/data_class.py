"""A class of data that must not meet another class, if the endpoint names one."""

from __future__ import annotations

from namespaces.core.component import ABSENT, Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return ABSENT if subject.data_class is None else subject.data_class


COMPONENT = Component(name="data_class", source="the endpoint's data class", value=value)
