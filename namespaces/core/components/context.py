"""Named versions of what is put into the prompt outside the request: policies, tools, a repository."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Subject


def value(subject: Subject) -> Value:
    return [[name, version] for name, version in sorted(subject.context)]


COMPONENT = Component(name="context", source="the endpoint's context and X-Saltroute-Context", value=value)
