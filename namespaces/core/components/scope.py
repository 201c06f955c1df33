"""Every scope from the root to the acting one with its version: raising any of them cuts off all below it."""

from __future__ import annotations

from namespaces.core.component import Component, Value
from namespaces.core.subject import Sharing, Subject


def value(subject: Subject) -> Value:
    # At level tenant only the root counts: raising its version must still cut off the whole tenant.
    levels = subject.scope[:1] if subject.sharing is Sharing.TENANT else subject.scope
    return [[level.id.bytes, level.segment, level.version] for level in levels]


COMPONENT = Component(name="scope", source="the acting auth scope and its ancestors", value=value)
