"""``file:PATH``: the 32 bytes as they are, in a file that only its process can read (a mounted secret, or 0600 on one machine)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from namespaces.root import RootError


class File:
    """A root key in a file."""

    scheme = "file"

    def load(self, rest: str, env: Mapping[str, str]) -> bytes:  # noqa: ARG002 - the port's signature
        """The file's bytes.

        Raises:
            RootError: it cannot be read.
        """
        try:
            return Path(rest).read_bytes()
        except OSError as error:
            raise RootError(f"the root key file {rest} cannot be read: {error.strerror}") from None


SOURCE = File()
