"""Scope paths form a tree: containment is an order, and only whole segments count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.core import scopes
from tenants.core.errors import Invalid

segments = st.sampled_from(["a", "ab", "b", "a-b"])
paths = st.lists(segments, max_size=4).map("/".join)


@given(paths)
def test_a_path_is_read_as_it_is_written(path: str) -> None:
    assert scopes.parse_path(path) == path


@given(paths)
def test_ancestors_run_from_the_root_to_the_path_one_segment_at_a_time(path: str) -> None:
    levels = scopes.ancestors(path)
    assert levels[0] == scopes.ROOT
    assert levels[-1] == path
    depths = [len(level.split("/")) if level else 0 for level in levels]
    assert depths == list(range(len(levels)))


@given(paths, paths)
def test_a_scope_contains_exactly_those_it_is_an_ancestor_of(outer: str, inner: str) -> None:
    assert scopes.contains(outer, inner) == (outer in scopes.ancestors(inner))


@given(paths, paths, paths)
def test_containment_is_an_order(one: str, two: str, three: str) -> None:
    assert scopes.contains(one, one)
    assert scopes.contains(scopes.ROOT, one)
    if scopes.contains(one, two) and scopes.contains(two, one):
        assert one == two
    if scopes.contains(one, two) and scopes.contains(two, three):
        assert scopes.contains(one, three)


@given(paths.filter(bool), segments)
def test_a_longer_segment_is_another_scope(path: str, more: str) -> None:
    assert not scopes.contains(path, path + more)


@pytest.mark.parametrize("path", ["/", "a/", "/a", "a//b", "A", "a b", "é", "a/../b", "-a", "a-", "a\n", None, 3, ["a"], "/".join("a" * 9), "a" * 64])
def test_anything_else_is_refused_with_its_field(path: object) -> None:
    with pytest.raises(Invalid) as refused:
        scopes.parse_path(path, field="scopes[0].path")
    assert refused.value.field == "scopes[0].path"


def test_the_deepest_path_is_accepted() -> None:
    deepest = "/".join("abcdefgh")
    assert scopes.parse_path(deepest) == deepest
    assert len(scopes.ancestors(deepest)) == scopes.MAX_DEPTH + 1
