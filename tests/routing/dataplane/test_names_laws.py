"""The short way to a name (what a view keeps) and the long way (a view compiled anew for every question) are one, whatever came before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from namespaces.core import keyring
from namespaces.core.keyring import TenantKey
from namespaces.core.snapshot import KeyMaterial
from routing.core.snapshot import AdapterEntry, ArtifactRef, TenantSnapshot
from routing.dataplane import view
from routing.dataplane.keys import Keys
from routing.dataplane.view import EMPTY, PlaneView, compile_tenant
from tests.fakes.rig import ROOT, SECRETS, bumped, endpoint, named, tenant

SLUGS = ("acme", "globex")
SCOPES = ("", "support", "support/emea")
MODELS = ("m-7b", "alias")
KEYS = Keys(SECRETS)


def _first(slug: str) -> TenantSnapshot:
    """Both tenants have endpoints of the same ids, which nothing forbids a damaged document."""
    made = tenant(slug, (), {f"sk-sr-{slug}-{number}-of-the-tests-0000000": path for number, path in enumerate(SCOPES)})
    pool = made.pools[0]
    return msgspec.structs.replace(
        made,
        endpoints=tuple(endpoint(pool, name, id=named(f"endpoint {name}"), context={"org": "v1"}, request_context=("repo",)) for name in MODELS),
    )


def _change(before: TenantSnapshot, what: str, number: int) -> TenantSnapshot:
    """The next version, with one thing changed that counts in an identity (or does not)."""
    one, *others = before.endpoints
    at: dict[str, Any] = {
        "endpoint's epoch": {"epoch": one.epoch + 1},
        "model": {"model": msgspec.structs.replace(one.model, revision=f"r{number}")},
        "template": {"model": msgspec.structs.replace(one.model, chat_template=ArtifactRef(digest=bytes([number % 256]) * 32))},
        "adapter": {"adapter": AdapterEntry(name="tuned", revision="1", generation=number + 1)},
        "sharing": {"sharing": ("tenant", "scope", "key")[number % 3]},
        "subdivision": {"client_subdivision": not one.client_subdivision},
        "cache of its own": {"own_cache": not one.own_cache},
        "context": {"context": {"org": f"v{number}"}},
        "nothing": {},
    }
    if what == "tenant's epoch":
        return bumped(before, epoch=before.epoch + 1)
    if what == "scope":
        return bumped(
            before, scopes=tuple(msgspec.structs.replace(scope, version=scope.version + (scope.path == "support")) for scope in before.scopes)
        )
    if what == "key":
        key = TenantKey(tenant_id=before.tenant_id, version=number + 2, secret=bytes([number % 256]) * 32)
        wrapped = keyring.wrap_tenant_key(ROOT, key, number.to_bytes(12, "big"))
        return bumped(before, key_material=KeyMaterial(version=number + 2, wrapped=wrapped))
    return bumped(before, endpoints=(msgspec.structs.replace(one, **at[what]), *others))


CHANGES = [
    "tenant's epoch", "endpoint's epoch", "scope", "key", "model", "template",
    "adapter", "sharing", "subdivision", "cache of its own", "context", "nothing",
]  # fmt: skip
asks = st.tuples(
    st.sampled_from(SLUGS), st.integers(0, 2), st.sampled_from(SCOPES), st.sampled_from(MODELS),
    st.sampled_from([{}, {"repo": "a"}, {"repo": "b"}]), st.sampled_from([None, "mine", "org=v1"]),
)  # fmt: skip
changes = st.tuples(st.sampled_from(SLUGS), st.sampled_from(CHANGES))
steps = st.lists(st.one_of(asks, asks, asks, changes), min_size=1, max_size=40)


def _name(plane: PlaneView, snapshot: TenantSnapshot, asked: tuple[Any, ...]) -> Any:
    _, key, scope_path, model, context, subdivision = asked
    held = plane.tenants[snapshot.tenant_id]
    return held.namespace(held.endpoints[model].entry, scope_path=scope_path, key_id=snapshot.keys[key].id, context=context, subdivision=subdivision)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_what_is_kept_is_what_would_be_derived_whatever_came_before(taken: list[tuple[Any, ...]]) -> None:
    """Two names are kept for each tenant, so that most are dropped and made again on the way. No salt is ever two tenants'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "MAX_NAMESPACES", 2)
        snapshots = {slug: _first(slug) for slug in SLUGS}
        plane = EMPTY.with_tenants(compile_tenant(snapshot, KEYS) for snapshot in snapshots.values())
        owners: dict[str, str] = {}
        for number, step in enumerate(taken):
            slug = step[0]
            if len(step) == 2:
                snapshots[slug] = _change(snapshots[slug], step[1], number)
                plane = plane.with_tenants([compile_tenant(snapshots[slug], KEYS)])
                continue
            short = _name(plane, snapshots[slug], step)
            anew = EMPTY.with_tenants([compile_tenant(snapshots[slug], KEYS)])
            assert short == _name(anew, snapshots[slug], step)
            assert owners.setdefault(short.salt, slug) == slug
            assert len(plane.tenants[snapshots[slug].tenant_id].namespaces) <= 2
