"""The tree of scopes as paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.core.errors import Invalid
from tenants.core.scopes import ROOT, ancestors, contains, parse_path

segments = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,3}[a-z0-9])?", fullmatch=True)
paths = st.lists(segments, max_size=8).map("/".join)


@given(paths)
def test_every_ancestor_contains_the_path_and_is_a_path(path: str) -> None:
    """From the root down to the path itself, one segment at a time."""
    line = ancestors(parse_path(path))
    assert (line[0], line[-1], len(line)) == (ROOT, path, len(path.split("/")) + 1 if path else 1)
    assert all(contains(outer, path) and parse_path(outer) == outer for outer in line)


@given(paths, paths)
def test_containing_is_being_an_ancestor(outer: str, inner: str) -> None:
    """Nothing else: ``a`` does not contain ``ab``."""
    assert contains(outer, inner) == (outer in ancestors(inner))


@pytest.mark.parametrize("value", ["/", "a/", "/a", "a//b", "A", "a/..", "/".join("abcdefghi"), None, 7, ["a"]])
def test_what_is_no_path(value: object) -> None:
    """Too deep, empty segments, other types."""
    with pytest.raises(Invalid):
        parse_path(value, field="scope")
