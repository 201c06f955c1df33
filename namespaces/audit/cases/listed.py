"""Rows that no probe reaches: proved by property tests of the encoding, or in need of an engine feature that no adapter of ours drives yet."""

from __future__ import annotations

from namespaces.audit.case import Case

ENCODING = Case(
    name="encoding",
    title="boundary shifts, null against empty against absent, Unicode forms",
    rows=(4, 5, 22),
    elsewhere="property tests of the identity encoding and the published vectors",
)
ANONYMOUS = Case(
    name="anonymous",
    title="no tenant, unknown tenant",
    rows=(25,),
    elsewhere="there is no anonymous namespace: a request without a known key is refused before it has one",
)
IMAGES = Case(name="images", title="images and prompt embeddings", rows=(14, 15))
TIERS = Case(name="tiers", title="external tiers and transfers between replicas", rows=(24,))
