"""Reads YAML by node, so that each error has its line, and all errors of a file come at once.

Nothing is constructed by YAML tags and nothing is coerced: text stays as it is written (``revision: 1.10`` is ``1.10``), duplicate and unknown keys
are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from routing.services.declarations.problems import DeclarationError, Problem
from tenants.core.errors import Invalid

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 20
_TEXT_TAGS = ("str", "int", "float", "timestamp")  # written without quotes, YAML would make these something else
_TAG = "tag:yaml.org,2002:"

T = TypeVar("T")


class Reader:
    """One file: its problems, and the line of every path that was read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {"": 1}

    def root(self) -> Fields | None:
        """Compose the file; None: there is nothing in it.

        Raises:
            DeclarationError: unreadable, too large, not YAML, several documents, or not a mapping.
        """
        try:
            raw = self.file.read_bytes()
        except OSError as error:
            raise DeclarationError(str(self.file), [Problem(1, "", f"cannot be read: {error.strerror}")]) from None
        if len(raw) > MAX_FILE_BYTES:
            raise DeclarationError(str(self.file), [Problem(1, "", f"is larger than {MAX_FILE_BYTES} bytes")])
        try:
            node = yaml.compose(raw, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise DeclarationError(str(self.file), [Problem(line, "", f"not YAML: {error.problem or error.context}")]) from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise DeclarationError(str(self.file), [Problem(1, "", f"not YAML: {type(error).__name__}")]) from None
        if node is None or (isinstance(node, ScalarNode) and node.tag == f"{_TAG}null"):
            return None
        return self.fields(node, "")

    def refuse(self, path: str, message: str, node: Node | None = None) -> None:
        """Note a problem at ``path``: at the node's line, else at the line of the nearest path that was read."""
        self.problems.append(Problem(_line(node) if node is not None else self.line_of(path), path, message))

    def line_of(self, path: str) -> int:
        """The line of ``path`` or of the nearest path around it."""
        while path not in self.lines:
            path = re.sub(r"(\.[^.\[]*|\[[^\]]*\]|^[^.\[]+)$", "", path)
        return self.lines[path]

    def fields(self, node: Node, path: str) -> Fields | None:
        """``node`` as a mapping, or None after noting that it is none."""
        self.lines.setdefault(path, _line(node))
        if not isinstance(node, MappingNode):
            self.refuse(path, "must be a mapping", node)
            return None
        found: dict[str, Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, ScalarNode) else ""
            inner = _join(path, name)
            if not name:
                self.refuse(path, "has a key that is not plain text", key)
            elif name in found:
                self.refuse(inner, "is given twice", key)
            else:
                found[name] = value
                self.lines[inner] = _line(key)
        return Fields(self, path, found)

    def plain(self, node: Node, path: str, depth: int = 0) -> Any:
        """``node`` as plain data, for documents with a schema of their own (policies)."""
        self.lines.setdefault(path, _line(node))
        if depth > MAX_DEPTH:
            self.refuse(path, f"is nested deeper than {MAX_DEPTH}", node)
            return None
        if isinstance(node, MappingNode):
            fields = self.fields(node, path)
            return {name: self.plain(value, _join(path, name), depth + 1) for name, value in (fields.nodes if fields else {}).items()}
        if isinstance(node, SequenceNode):
            return [self.plain(item, f"{path}[{position}]", depth + 1) for position, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _scalar(self, node: Node, path: str) -> Any:
        tag = node.tag.removeprefix(_TAG)
        text: str = node.value
        if tag == "null":
            return None
        if tag == "bool":
            return _flag(text)
        try:
            if tag == "int":
                return int(text.replace("_", ""))
            if tag == "float":
                return float(text.replace("_", ""))
        except ValueError:
            self.refuse(path, "is a number in a form that is not supported; write it in decimal digits", node)
            return None
        if tag in _TEXT_TAGS:
            return text
        self.refuse(path, "has a YAML tag; only plain values are read", node)
        return None


class Fields:
    """The keys of one mapping. Each is asked for once by name; :meth:`done` refuses what nobody asked for."""

    def __init__(self, reader: Reader, path: str, nodes: dict[str, Node]) -> None:
        self.reader = reader
        self.path = path
        self.nodes = nodes
        self._asked: set[str] = set()

    def node(self, name: str, *, required: bool = False) -> Node | None:
        """The node of a key; None when it is absent or null."""
        self._asked.add(name)
        found = self.nodes.get(name)
        if found is not None and found.tag == _TAG + "null":
            found = None
        if found is None and required:
            self.reader.refuse(_join(self.path, name), "is required")
        return found

    def has(self, name: str) -> bool:
        """Whether the key is there with a value."""
        return self.node(name) is not None

    def text(self, name: str, *, required: bool = False, check: Callable[..., Any] | None = None) -> str | None:
        """Text as it is written."""
        node = self.node(name, required=required)
        return None if node is None else self.reader_text(node, _join(self.path, name), check)

    def reader_text(self, node: Node, path: str, check: Callable[..., Any] | None) -> str | None:
        """A scalar node as text, checked."""
        tag = node.tag.removeprefix(_TAG)
        if not isinstance(node, ScalarNode) or tag not in _TEXT_TAGS:
            self.reader.refuse(path, "must be text; put it in quotes" if isinstance(node, ScalarNode) else "must be text", node)
            return None
        value: str = node.value
        if check is not None:
            try:
                check(value, field=path)
            except Invalid as error:
                self.reader.refuse(path, error.message, node)
                return None
        return value

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        node = self.node(name)
        if node is None:
            return default
        if node.tag != _TAG + "bool":
            self.reader.refuse(_join(self.path, name), "must be true or false", node)
            return default
        return _flag(node.value)

    def integer(self, name: str) -> int | None:
        """A whole number in decimal digits."""
        node = self.node(name)
        if node is None:
            return None
        if node.tag != _TAG + "int" or not re.fullmatch(r"\d{1,18}", node.value):
            self.reader.refuse(_join(self.path, name), "must be a whole number", node)
            return None
        return int(node.value)

    def items(self, name: str, read: Callable[[Node, str], T | None]) -> list[T]:
        """A list, each item read by ``read(node, path)``; those that could not be read are left out."""
        node = self.node(name)
        path = _join(self.path, name)
        if node is None:
            return []
        if not isinstance(node, SequenceNode):
            self.reader.refuse(path, "must be a list", node)
            return []
        found = []
        for position, item in enumerate(node.value):
            inner = f"{path}[{position}]"
            self.reader.lines[inner] = _line(item)
            value = read(item, inner)
            if value is not None:
                found.append(value)
        return found

    def words(self, name: str, check: Callable[..., Any] | None = None) -> list[str] | None:
        """A list of texts; None when the key is absent."""
        return self.items(name, lambda node, path: self.reader_text(node, path, check)) if self.has(name) else None

    def texts(self, name: str, check: Callable[..., Any] | None = None) -> dict[str, str]:
        """A mapping of texts."""
        node = self.node(name)
        if node is None:
            return {}
        inner = self.reader.fields(node, _join(self.path, name))
        if inner is None:
            return {}
        found = {key: inner.text(key, required=True, check=check) for key in inner.nodes}
        return {key: value for key, value in found.items() if value is not None}

    def done(self) -> None:
        """Refuse the keys that nobody asked for."""
        for name in self.nodes:
            if name not in self._asked:
                known = ", ".join(sorted(self._asked))
                self.reader.refuse(_join(self.path, name), f"is not known here; known: {known}")


def _flag(text: str) -> bool:
    return text.lower() in ("true", "yes", "on")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
