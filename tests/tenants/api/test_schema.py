"""The API's description of itself."""

from __future__ import annotations

import warnings
from typing import Any

from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

import tenants.api.urls as routes


def _schema() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generator compares with old Django names; its own warnings are counted below
        GENERATOR_STATS.reset()
        schema: dict[str, Any] = SchemaGenerator(urlconf="tests.tenants.urls").get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # not annotated
    return schema


def test_it_is_valid_and_generated_without_a_warning() -> None:
    """Every view says what it takes and gives."""
    schema = _schema()
    validate_schema(schema)  # type: ignore[no-untyped-call]  # not annotated
    assert not GENERATOR_STATS, f"{GENERATOR_STATS._warn_cache} {GENERATOR_STATS._error_cache}"


def test_every_route_is_listed_once_with_summary_and_refusals() -> None:
    """One path for both spellings; each operation has a unique name, a summary, both credentials and the shape of errors."""
    schema = _schema()
    assert len(schema["paths"]) == len(routes.urlpatterns) / 2
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
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
