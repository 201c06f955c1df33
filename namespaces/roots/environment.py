"""``env:NAME``: the key as 64 hexadecimal digits or as base64 in an environment variable, where a platform offers nothing better.

An environment shows in crash reports and to every child process: prefer a file or a KMS.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from namespaces.root import RootError

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_BASE64 = re.compile(r"[A-Za-z0-9_-]{43}=?")


class Environment:
    """A root key in an environment variable."""

    scheme = "env"

    def load(self, rest: str, env: Mapping[str, str]) -> bytes:
        """Decode the variable.

        Raises:
            RootError: it is not set, or is neither of the two forms.
        """
        text = env.get(rest, "").strip()
        if not text:
            raise RootError(f"the root key variable {rest} is not set")
        if _HEX.fullmatch(text):
            return bytes.fromhex(text)
        url_safe = text.replace("+", "-").replace("/", "_")
        if not _BASE64.fullmatch(url_safe):
            raise RootError(f"the root key variable {rest} must be 64 hexadecimal digits, or 32 bytes in base64")
        try:
            return base64.urlsafe_b64decode(url_safe.rstrip("=") + "=")
        except binascii.Error:
            raise RootError(f"the root key variable {rest} is not base64") from None


SOURCE = Environment()
