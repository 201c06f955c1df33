"""Auth scopes: a tree inside one tenant, written as a path of slugs such as ``support/emea``.

The root scope of a tenant has the empty path. A key is bound to one scope and may act in it and in the scopes below it.
"""

from __future__ import annotations

from tenants.core.errors import Invalid
from tenants.core.names import slug

MAX_DEPTH = 8
ROOT = ""


def parse_path(value: object, *, field: str = "path") -> str:
    """Check a scope path and return it; the empty path is the root.

    Raises:
        Invalid: not text, deeper than ``MAX_DEPTH``, or a segment is not a slug.
    """
    if value == ROOT:
        return ROOT
    if not isinstance(value, str):
        raise Invalid("A scope path is text such as support/emea.", field=field)
    segments = value.split("/")
    if len(segments) > MAX_DEPTH:
        raise Invalid(f"A scope path has at most {MAX_DEPTH} segments.", field=field)
    for segment in segments:
        slug(segment, field=field)
    return value


def ancestors(path: str) -> tuple[str, ...]:
    """All paths from the root to ``path`` itself: ``a/b`` gives ``("", "a", "a/b")``."""
    if path == ROOT:
        return (ROOT,)
    segments = path.split("/")
    return (ROOT, *("/".join(segments[: depth + 1]) for depth in range(len(segments))))


def contains(outer: str, inner: str) -> bool:
    """Whether ``inner`` is ``outer`` or lies below it. Compared by segments: ``a`` does not contain ``ab``."""
    return outer in (ROOT, inner) or inner.startswith(outer + "/")
