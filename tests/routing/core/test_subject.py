"""From a snapshot to an identity: what an operator changes for good reasons starts a new cache, and nothing else does."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from namespaces.core.identity import encode
from routing.core import subject
from routing.core.snapshot import AdapterEntry, ArtifactRef, EndpointEntry, ModelEntry, PolicyEntry, TenantSnapshot
from tenants.core.snapshot import ScopeEntry

TENANT = TenantSnapshot(tenant_id=UUID(int=1), slug="acme", version=1, published_at=0.0)
ENDPOINT = EndpointEntry(
    id=UUID(int=2),
    name="llama-chat",
    pool_id=UUID(int=3),
    model=ModelEntry(name="m-7b", revision="r1", tokenizer=ArtifactRef(b"t" * 32, "t1"), chat_template=ArtifactRef(b"c" * 32, "c1")),
    engine="vllm",
    served_model="m",
    routing_policy=PolicyEntry(name="default", version=1, spec={"policy": "ettft"}),
    adapter=AdapterEntry("tone", "a1", 1),
    context={"org_policy": "v7"},
    request_context=("repo",),
)
SCOPES = {path: ScopeEntry(id=UUID(int=10 + number), path=path, version=1) for number, path in enumerate(["", "support", "support/emea"])}


def _identity(
    *,
    tenant: TenantSnapshot = TENANT,
    endpoint: EndpointEntry = ENDPOINT,
    path: str = "support",
    scopes: dict[str, ScopeEntry] = SCOPES,
    key: int = 5,
    context: dict[str, str] | None = None,
    client: str | None = None,
    nonce: bytes = b"n" * 16,
) -> bytes:
    built = subject.build(
        tenant=tenant,
        endpoint=endpoint,
        levels=subject.scope_levels(path, scopes),
        key_id=UUID(int=key),
        request_context=context or {},
        client_subdivision=client,
        request_nonce=nonce,
    )
    return encode(built)


def _model(**changes: Any) -> EndpointEntry:
    return replace(ENDPOINT, model=replace(ENDPOINT.model, **changes))


@pytest.mark.parametrize(
    "endpoint",
    [
        replace(ENDPOINT, name="alias"),
        replace(ENDPOINT, id=UUID(int=99)),
        replace(ENDPOINT, pool_id=UUID(int=99)),
        replace(ENDPOINT, served_model="m-alias"),
        replace(ENDPOINT, routing_policy=PolicyEntry(name="other", version=9, spec={"policy": "round_robin"})),
        replace(ENDPOINT, slo=PolicyEntry(name="slo", version=1, spec={"ttft_p95_ms": 1})),
        replace(ENDPOINT, request_context=("repo", "branch")),
        replace(ENDPOINT, created_at=5.0, enabled=False),
        _model(context_window_tokens=8192),
    ],
    ids=lambda _: "",
)
def test_what_an_engine_does_not_see_keeps_the_cache(endpoint: EndpointEntry) -> None:
    assert _identity(endpoint=endpoint) == _identity()


@pytest.mark.parametrize(
    "endpoint",
    [
        _model(name="m-8b"),
        _model(revision="r2"),
        _model(quantisation="fp8"),
        _model(kv_dtype="fp8"),
        _model(multimodal_processor="p1"),
        _model(tokenizer=ArtifactRef(b"u" * 32, "t1")),  # a changed file under the same label
        _model(tokenizer=ArtifactRef(b"t" * 32, "t2")),
        _model(chat_template=ArtifactRef(b"d" * 32, "c1")),
        replace(ENDPOINT, engine="sglang"),
        replace(ENDPOINT, adapter=None),
        replace(ENDPOINT, adapter=AdapterEntry("tone", "a1", 2)),  # reloaded under the same name
        replace(ENDPOINT, context={"org_policy": "v8"}),
        replace(ENDPOINT, context={}),
        replace(ENDPOINT, epoch=2),
        replace(ENDPOINT, data_class="restricted"),
        replace(ENDPOINT, own_cache=True),
        replace(ENDPOINT, sharing="tenant"),
        replace(ENDPOINT, sharing="key"),
    ],
    ids=lambda _: "",
)
def test_what_changes_tokens_weights_or_context_starts_a_new_cache(endpoint: EndpointEntry) -> None:
    assert _identity(endpoint=endpoint) != _identity()


def test_tenants_epochs_scopes_and_their_versions_start_new_caches() -> None:
    raised_root = {**SCOPES, "": replace(SCOPES[""], version=2)}
    raised_own = {**SCOPES, "support": replace(SCOPES["support"], version=2)}
    identities = [
        _identity(),
        _identity(tenant=replace(TENANT, tenant_id=UUID(int=9))),
        _identity(tenant=replace(TENANT, epoch=2)),
        _identity(path="support/emea"),
        _identity(path=""),
        _identity(scopes=raised_root),
        _identity(scopes=raised_own),
        _identity(context={"repo": "abc"}),
        _identity(context={"repo": "def"}),
    ]
    assert len(set(identities)) == len(identities)


def test_raising_a_scope_does_not_touch_those_above_it() -> None:
    raised = {**SCOPES, "support/emea": replace(SCOPES["support/emea"], version=2)}
    assert _identity(scopes=raised, path="support") == _identity(path="support")
    assert _identity(scopes=raised, path="support/emea") != _identity(path="support/emea")


@pytest.mark.parametrize(
    ("sharing", "keys_share", "scopes_share", "requests_share"),
    [("tenant", True, True, True), ("scope", True, False, True), ("key", False, False, True), ("none", False, False, False)],
)
def test_the_sharing_level_decides_who_shares(sharing: Any, keys_share: bool, scopes_share: bool, requests_share: bool) -> None:
    endpoint = replace(ENDPOINT, sharing=sharing)
    here = _identity(endpoint=endpoint)
    assert (_identity(endpoint=endpoint, key=6) == here) == keys_share
    assert (_identity(endpoint=endpoint, path="support/emea") == here) == scopes_share
    assert (_identity(endpoint=endpoint, nonce=b"m" * 16) == here) == requests_share


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
def test_a_client_subdivides_only_where_the_endpoint_allows_it(salt: str) -> None:
    allowed = replace(ENDPOINT, client_subdivision=True)
    assert _identity(client=salt) == _identity()
    assert _identity(endpoint=allowed, client=salt) != _identity(endpoint=allowed)
    assert _identity(endpoint=allowed, client=salt, path="support/emea") != _identity(endpoint=allowed, client=salt)


@pytest.mark.parametrize("missing", ["", "support"])
def test_a_scope_with_a_missing_ancestor_has_no_identity(missing: str) -> None:
    incomplete = {path: entry for path, entry in SCOPES.items() if path != missing}
    with pytest.raises(KeyError):
        _identity(scopes=incomplete, path="support/emea")


def test_scopes_of_one_name_under_two_parents_are_two() -> None:
    scopes = {**SCOPES, "research": ScopeEntry(UUID(int=20), "research", 1), "research/emea": ScopeEntry(UUID(int=21), "research/emea", 1)}
    assert _identity(scopes=scopes, path="research/emea") != _identity(scopes=scopes, path="support/emea")
