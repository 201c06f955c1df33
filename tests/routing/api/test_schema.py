"""The API's description of itself, and its documentation page."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any, get_args

import pytest
from django.test import Client
from django.urls import get_resolver
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from routing.core import glossary, residency_state
from routing.core.reach import AWAY

pytestmark = pytest.mark.django_db


def test_the_description_is_valid_and_names_every_operation_once() -> None:
    """No warning of the generator, no path of two names for one operation, nothing left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generator compares with old Django names; its own warnings are counted below
        GENERATOR_STATS.reset()
        schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # not annotated
    validate_schema(schema)  # type: ignore[no-untyped-call]  # not annotated
    operations = [operation["operationId"] for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) == len(set(operations))
    expected = {"keys_issue", "endpoints_rotate_epoch", "routing_policies_append", "slo_policies_diff", "decisions_read", "grants_create"}
    assert expected <= set(operations)
    assert not GENERATOR_STATS, f"{GENERATOR_STATS._warn_cache} {GENERATOR_STATS._error_cache}"
    assert not [path for path in schema["paths"] if path.endswith("/")]


@cache
def _components() -> dict[str, Any]:
    """Of the description, by name."""
    found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)["components"]["schemas"]  # type: ignore[no-untyped-call]  # not annotated
    return found


def test_a_replica_that_nobody_reaches_stands_in_the_description_as_an_example() -> None:
    """The example is a whole answer in the words of the terms, and each of its fields is described."""
    replica, reach = _components()["ReplicaOut"], _components()["ReachOut"]
    (example,) = replica["properties"]["reach"]["examples"]
    assert set(example) == set(reach["properties"]) == set(reach["required"])
    assert all(field["description"] for field in reach["properties"].values())
    assert example["why"] in {glossary.label("health", code) for code in AWAY}


def test_residency_stands_in_the_description_as_an_example_in_the_words_of_the_terms() -> None:
    replica, residency = _components()["ReplicaOut"], _components()["ResidencyOut"]
    (example,) = replica["properties"]["residency"]["examples"]
    assert set(example) == set(residency["properties"]) == set(residency["required"])
    assert all(field["description"] for field in residency["properties"].values())
    states = set(get_args(residency_state.State))
    assert set(residency["properties"]["state"]["examples"]) == states
    assert all(f"{one}: " in residency["properties"]["state"]["description"] for one in states)
    assert example["state"] in states
    assert example["why"] == "; ".join(glossary.label("residency_reason", one) for one in example["reasons"])
    assert "residency" in replica["properties"]["kv_events"]["description"]


def test_it_is_served_without_a_credential() -> None:
    answer = Client().get("/api/schema/")
    assert answer.status_code == 200
    assert b"openapi: 3" in answer.content
    assert Client().get("/api/schema").status_code == 200


def test_the_documentation_page_works_under_its_content_security_policy() -> None:
    """Only our own scripts and styles, no inline script; every file it names is served."""
    client = Client()
    answer = client.get("/api/docs/")
    assert answer.status_code == 200
    page = answer.content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>\s*\S", page)
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(sources) >= 3
    assert all(source.startswith("/") for source in sources)
    for source in sources:
        assert client.get(source.replace("&amp;", "&")).status_code == 200, source
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_every_resource_is_routed_with_and_without_a_slash() -> None:
    resolver = get_resolver()
    for name in ("pools", "replicas", "endpoints", "routing-policies", "decisions", "status", "keys", "models"):
        first, second = resolver.resolve(f"/api/v1/{name}"), resolver.resolve(f"/api/v1/{name}/")
        assert first.func.cls is second.func.cls  # type: ignore[attr-defined]  # as_view sets it
