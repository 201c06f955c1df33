"""What a declaration refers to: secrets in variables and files, and artifacts in files. A secret itself is never taken from the declaration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from yaml.nodes import Node, ScalarNode

from routing.services import artifacts
from routing.services.declarations.document import STORED, File, Secret
from routing.services.declarations.reader import Fields, Reader

MAX_SECRET_BYTES = 64 * 1024
_HOW = "give a reference, env:NAME or file:PATH; a secret itself does not belong in a declaration"


def secret(reader: Reader, node: Node, path: str, env: Mapping[str, str]) -> Secret | None:
    """Read a secret by its reference; None after noting why not. Nothing of a literal secret is repeated in the message."""
    reader.lines[path] = node.start_mark.line + 1
    reference = node.value if isinstance(node, ScalarNode) else ""
    if reference == STORED:
        return Secret(STORED, None)
    kind, _, where = str(reference).partition(":")
    if kind == "env" and where:
        value = env.get(where, "")
        if not value:
            reader.refuse(path, f"the environment variable {where} is not set", node)
            return None
    elif kind == "file" and where:
        read = _file(reader, where, path, node, MAX_SECRET_BYTES)
        if read is None:
            return None
        try:
            value = read.decode("utf-8").strip()
        except UnicodeDecodeError:
            reader.refuse(path, f"{where} is not UTF-8 text", node)
            return None
        if not value:
            reader.refuse(path, f"{where} is empty", node)
            return None
    else:
        reader.refuse(path, _HOW, node)
        return None
    return Secret(f"{kind}:{where}", value)


def artifact(fields: Fields, *, kind: str, at: str, digest_at: str) -> File | None:
    """The artifact that ``fields`` name by a path under ``at`` or by a SHA-256 under ``digest_at``, or None."""
    reader = fields.reader
    node, digest = fields.node(at), fields.text(digest_at)
    path = f"{fields.path}.{at}"
    if node is None:
        if digest is None:
            return None
        path = f"{fields.path}.{digest_at}"
        if len(digest) != 64 or any(character not in "0123456789abcdef" for character in digest):
            reader.refuse(path, "must be the 64 lower-case hexadecimal digits of a SHA-256")
            return None
        return File(path=path, kind=kind, name="", sha256=digest, content=None)
    where = fields.reader_text(node, path, None)
    if where is None:
        return None
    content = _file(reader, where, path, node, artifacts.MAX_BYTES)
    if content is None:
        return None
    actual = hashlib.sha256(content).hexdigest()
    if digest is not None and digest != actual:
        reader.refuse(f"{fields.path}.{digest_at}", f"the file has the SHA-256 {actual}")
        return None
    return File(path=path, kind=kind, name=Path(where).name, sha256=actual, content=content)


def _file(reader: Reader, where: str, path: str, node: Node, maximum: int) -> bytes | None:
    """The bytes of a file; a relative path is taken from the declaration's directory."""
    target = reader.file.parent / where
    try:
        if not target.is_file():  # also keeps us from waiting on a pipe or a device
            seen_from = "" if Path(where).is_absolute() else ", seen from the folder of this declaration"
            reader.refuse(path, f"{where} is not a file{seen_from}", node)
            return None
        with target.open("rb") as stream:
            content = stream.read(maximum + 1)
    except (OSError, ValueError) as error:
        reader.refuse(path, f"{where} cannot be read: {getattr(error, 'strerror', None) or error}", node)
        return None
    if len(content) > maximum:
        reader.refuse(path, f"{where} is larger than {maximum} bytes", node)
        return None
    return content
