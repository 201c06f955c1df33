"""Digest of the tokenizer file where we hold it, and its revision label."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return [subject.tokenizer.digest, subject.tokenizer.revision]


COMPONENT = Component(name="tokenizer", source="the model's tokenizer artifact", value=value)
