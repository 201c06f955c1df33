"""Digest of the chat template where we hold it, and its revision label."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return [subject.chat_template.digest, subject.chat_template.revision]


COMPONENT = Component(name="chat_template", source="the model's chat template artifact", value=value)
