"""The register of audit cases. Together they name every row of the negative matrix; a test holds that."""

from __future__ import annotations

from namespaces.audit.case import Case
from namespaces.audit.cases import adapters, client_salts, joined_texts, listed, part_of_salt, routes, two_salts

CASES: tuple[Case, ...] = (
    two_salts.CASE,
    part_of_salt.CASE,
    routes.CASE,
    client_salts.CASE,
    adapters.CASE,
    joined_texts.CASE,
    listed.ENCODING,
    listed.ANONYMOUS,
    listed.IMAGES,
    listed.TIERS,
)
