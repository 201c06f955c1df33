"""The port behind which the root key lies. Used by the routers, the ``keys`` worker and commands; it knows no Django.

A *reference* says where a root key is and holds nothing secret: ``file:PATH``, ``env:NAME`` or ``awskms:PATH?key=ARN``. ``SALTROUTE_ROOT`` is a list
of them: the first is current, the others are still accepted while a rotation goes on. Implementations are in ``namespaces/roots``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class RootError(Exception):
    """A root key cannot be had: a malformed reference, a missing file, a KMS that refuses. The text names the reference, never the key."""


class RootSource(Protocol):
    """One way to come by a root key. ``scheme`` is what its references begin with."""

    scheme: str

    def load(self, rest: str, env: Mapping[str, str]) -> bytes:
        """The 32 bytes behind the reference ``scheme:rest``. May read files and call the network, bounded by its own deadlines.

        Raises:
            RootError: it cannot be had.
        """
        ...
