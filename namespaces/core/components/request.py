"""A nonce, where no two requests may share."""

from __future__ import annotations

from namespaces.core.component import ABSENT, Component, Value
from namespaces.core.subject import Sharing, Subject


def value(subject: Subject) -> Value:
    if subject.sharing is not Sharing.NONE:
        return ABSENT
    if not subject.request_nonce:
        raise ValueError("sharing level none needs a nonce")
    return subject.request_nonce


COMPONENT = Component(name="request", source="drawn by the router for each request, at sharing level none", value=value)
