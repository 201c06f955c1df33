"""Revision of the multimodal processor; null where the model reads text only."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return subject.multimodal_processor


COMPONENT = Component(name="multimodal", source="the model's multimodal processor revision", value=value)
