"""The register of root key sources, and the one function that loads keys. A new source is one file and one line here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from namespaces.core.keyring import KEY_BYTES, Roots
from namespaces.root import RootError, RootSource
from namespaces.roots import aws_kms, environment, file

SOURCES: Mapping[str, RootSource] = {source.scheme: source for source in (file.SOURCE, environment.SOURCE, aws_kms.SOURCE)}
MAX_ROOTS = 4


def load(wanted: tuple[str, ...], env: Mapping[str, str] = os.environ) -> Roots:
    """Load root keys; the first reference is the current one.

    Raises:
        RootError: none is named, too many, one twice, or one cannot be had.
    """
    if not 1 <= len(wanted) <= MAX_ROOTS:
        raise RootError(f"name 1 to {MAX_ROOTS} root keys in SALTROUTE_ROOT, the current one first")
    found = tuple(_one(reference, env) for reference in wanted)
    if len(set(found)) != len(found):
        raise RootError("SALTROUTE_ROOT names one root key twice")
    return Roots(found)


@cache
def held(wanted: tuple[str, ...]) -> Roots:
    """As :func:`load`, once in a process: a KMS is asked at the first use and not again.

    Raises:
        RootError: as :func:`load`; not remembered.
    """
    return load(wanted)


def _one(reference: str, env: Mapping[str, str]) -> bytes:
    scheme, colon, rest = reference.partition(":")
    source = SOURCES.get(scheme)
    if source is None or not colon or not rest:
        # Not repeated: somebody may have put the key itself here.
        raise RootError(f"a root key reference begins with one of {', '.join(f'{name}:' for name in SOURCES)}")
    key = source.load(rest, env)
    if len(key) != KEY_BYTES:
        raise RootError(f"{reference.partition('?')[0]} must hold exactly {KEY_BYTES} bytes")
    return key
