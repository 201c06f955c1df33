"""The short-lived token of an audit's probe: what one request through a router's internal door may do (:mod:`namespaces.core.signed`).

A token carries no salt and no credential: it names a tenant, an endpoint, a replica and one of two synthetic audit scopes, and the router derives
the rest as it does for everybody. Who holds one for its sixty seconds can send prompts of his own in namespaces that no client can reach.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID, uuid5

import msgspec

from namespaces.core.signed import Kind, TokenRefused

SCHEME = "Probe"  # Authorization: Probe <token>
MAX_TOKEN_CHARACTERS = 2048
MAX_ADDED_SALT_CHARACTERS = 81  # 128, the most an engine takes, less the 47 of a salt
Letter = Literal["A", "B"]


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the probe is.

    ``adapter`` is the served name that the engine gets in place of the endpoint's own. It does *not* enter the identity: base model and adapter
    are sent under one salt, since the engine's own key is what is tried. What the engine gets as salt is ``salt_prefix + salt + salt_suffix``;
    they change nothing else. They let an audit meet engines that join texts, or that read only a part of the salt.
    """

    tenant: UUID
    endpoint: UUID
    replica: UUID
    scope: Letter
    run: UUID  # of the audit; enters the synthetic scope, so that every run starts cold
    exp: float  # unix s
    nonce: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    adapter: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    salt_prefix: Annotated[str, msgspec.Meta(max_length=MAX_ADDED_SALT_CHARACTERS)] = ""
    salt_suffix: Annotated[str, msgspec.Meta(max_length=MAX_ADDED_SALT_CHARACTERS)] = ""

    def engine_salt(self, salt: str) -> str:
        """What to send in place of the derived ``salt``."""
        return f"{self.salt_prefix}{salt}{self.salt_suffix}"


PROBES = Kind(Claims, purpose=b"saltroute/probe/v1\0", max_characters=MAX_TOKEN_CHARACTERS)
sign = PROBES.sign


def scope_id(run: UUID, letter: Letter) -> UUID:
    """The id of an audit's synthetic scope; its segment is ``audit-a`` or ``audit-b``, its version 1. No tenant can have a scope of this id."""
    return uuid5(run, letter)


def verify(token: str, publish_public_key: bytes, *, now_s: float) -> Claims:
    """Read a token. Its nonce is the caller's to remember, if a repeat must be refused.

    Raises:
        TokenRefused: anything at all is wrong with it.
    """
    claims = PROBES.verify(token, publish_public_key, now_s=now_s)
    if len(claims.salt_prefix) + len(claims.salt_suffix) > MAX_ADDED_SALT_CHARACTERS:
        raise TokenRefused
    return claims
