"""The API's description of itself, as a client generator reads it."""

from __future__ import annotations

from functools import cache
from io import StringIO
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.urls import URLPattern

import tenants.api.urls as routes


@cache
def _schema() -> dict[str, Any]:
    out = StringIO()
    call_command("spectacular", "--fail-on-warn", stdout=out)  # whether it is valid tests/routing/api/test_schema.py asks, of the same description
    schema: dict[str, Any] = yaml.safe_load(out.getvalue())
    return schema


def _own() -> dict[str, Any]:
    """The paths of this app."""
    first = {str(pattern.pattern).split("/")[0] for pattern in routes.urlpatterns if isinstance(pattern, URLPattern)}
    return {path: item for path, item in _schema()["paths"].items() if path.split("/")[3] in first}


def test_it_is_generated_without_a_warning() -> None:
    """The whole control API: every view says what it takes and gives."""
    assert _schema()["openapi"].startswith("3.1")
    assert len(_schema()["paths"]) >= len(_own()) > 10


def test_every_route_is_listed_once_with_summary_and_refusals() -> None:
    """One path for both spellings; each operation has a unique name, a summary, both credentials and the shape of errors."""
    assert len(_own()) == len(routes.urlpatterns) / 2
    operations = [operation for path in _own().values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) > 25
    for operation in operations:
        assert operation["summary"]
        assert {"controlToken": []} in operation["security"]
        assert {"consoleSession": []} in operation["security"]
        assert operation["responses"]["401"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}


def test_bodies_say_what_they_refuse() -> None:
    """A body's component names its fields and takes no others; an issued key has its secret and version."""
    components = _schema()["components"]["schemas"]
    assert components["KeyNew"]["additionalProperties"] is False
    assert components["KeyNew"]["required"] == ["name"]
    assert {"secret", "config_version"} <= set(components["KeyIssuedChanged"]["properties"])
    assert not {"secret", "digest"} & set(components["KeyOut"]["properties"])


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/schema/", "/api/docs/"])
def test_it_is_served_to_anybody(client: Any, path: str) -> None:
    """The description holds nothing of any tenant."""
    assert client.get(path).status_code == 200
