"""Name, weights revision, quantisation and KV dtype. Engines expose no digest of weights, so the declared revision counts."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    model = subject.model
    return [model.name, model.revision, model.quantisation, model.kv_dtype]


COMPONENT = Component(name="model", source="the endpoint's model", value=value)
