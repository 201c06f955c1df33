"""The order to look at an engine, from the control plane to a router's internal door: which address, for whom, with which sealed credential.

A token (:mod:`namespaces.core.signed`). The credential inside is sealed to the routers: whoever carries the order cannot read it.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from namespaces.core.signed import Kind

MAX_ORDER_CHARACTERS = 16 * 1024


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``check`` is what the credential is bound to, as a replica's is to its id. ``endpoint``: whose artifacts tokens are compared with."""

    tenant: UUID
    check: UUID
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    engine: Annotated[str, msgspec.Meta(min_length=1, max_length=16)]
    exp: float  # unix s
    nonce: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    served_model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    endpoint: UUID | None = None
    credential: bytes | None = None


ORDERS = Kind(Order, purpose=b"saltroute/check/v1\0", max_characters=MAX_ORDER_CHARACTERS)
sign, verify = ORDERS.sign, ORDERS.verify
