"""``namespace explain`` says what the router does: the same components from the same rows, the same public id, and no key or salt."""

from __future__ import annotations

import time
from dataclasses import asdict
from io import StringIO
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from namespaces.core import identity
from namespaces.core.components import COMPONENTS
from routing.services import endpoints, explanation, publishing
from routing.services.explanation import Explained
from tenants.core.api_key import Kind
from tenants.core.errors import Invalid, NotFound
from tenants.core.roles import Role
from tenants.scoping import tenant_scope
from tenants.services import api_keys, provisioning, scopes
from tests.namespaces.services.world import ACTOR, BOTH, NEW, OLD, World, make_world, router_view, spellings

SCOPE, CONTEXT = "X-Saltroute-Scope", "X-Saltroute-Context"


@pytest.fixture
def world(db: None, settings: Any) -> World:
    """Acorn with scopes, an endpoint that takes context and a key bound to a scope."""
    settings.ROOT = ()
    world = make_world(settings)
    acorn = world.tenants["acorn"]
    with tenant_scope(acorn):
        for path in ("support", "support/emea", "sales"):
            scopes.create(tenant_id=acorn, actor=ACTOR, path=path)
        endpoint = publishing.build_snapshot(acorn, now_s=time.time()).endpoints[0]
        endpoints.update(tenant_id=acorn, actor=ACTOR, endpoint_id=endpoint.id, context={"org": "v7"}, request_context=["repo"])
        api_keys.issue_inference(tenant_id=acorn, actor=ACTOR, name="helpdesk", scope_path="support", now=timezone.now())
    return world


def _explain(world: World, headers: dict[str, str] | None = None, *, key: str = "helpdesk", model: str = "chat", **more: Any) -> Explained:
    acorn = world.tenants["acorn"]
    with tenant_scope(acorn):
        return explanation.explain(tenant_id=acorn, key=key, model=model, headers=headers or {}, **more)


def _change(world: World, **fields: Any) -> None:
    acorn = world.tenants["acorn"]
    with tenant_scope(acorn):
        endpoint = publishing.build_snapshot(acorn, now_s=time.time()).endpoints[0]
        endpoints.update(tenant_id=acorn, actor=ACTOR, endpoint_id=endpoint.id, **fields)


@pytest.mark.parametrize("sharing", ["tenant", "scope", "key"])
@pytest.mark.parametrize("scope", [None, "support", "support/emea"])
@pytest.mark.parametrize("context", [None, "repo=abc123"])
def test_the_public_id_is_the_routers(world: World, sharing: str, scope: str | None, context: str | None) -> None:
    """For every sharing level, scope and context: derived from the same parts as in the router."""
    _change(world, sharing=sharing)
    headers = {name: value for name, value in ((SCOPE, scope), (CONTEXT, context)) if value is not None}
    view = router_view(world.tenants["acorn"], sealed_to=NEW, roots=(NEW, OLD))
    key = next(entry for entry in view.snapshot.keys if entry.name == "helpdesk")
    expected = view.namespace(
        view.endpoints["chat"].entry,
        scope_path=scope or "support",
        key_id=key.id,
        context={"repo": "abc123"} if context else {},
        subdivision=None,
    )
    answer = _explain(world, headers, roots=BOTH)
    assert answer.public_id == expected.public_id
    assert answer.identity.sharing == sharing


def test_every_component_is_there_in_encoding_order(world: World) -> None:
    """Absent ones are named as absent; null differs from absent; ids and versions are readable."""
    answer = _explain(world, {SCOPE: "support/emea", CONTEXT: "repo=abc"})
    shown = {component.name: component for component in answer.identity.components}
    assert list(shown) == [component.name for component in COMPONENTS]
    assert {name for name, component in shown.items() if component.absent} == {"key", "request", "endpoint", "data_class", "client"}
    assert (shown["adapter"].absent, shown["adapter"].value) == (False, None)
    assert shown["tenant"].value == str(world.tenants["acorn"])
    assert [level[1:] for level in shown["scope"].value] == [["", 1], ["support", 1], ["emea", 1]]
    assert shown["context"].value == [["org", "v7"], ["repo", "abc"]]
    assert shown["epoch"].value == [1, 1]
    assert all(component.source for component in shown.values())
    assert (answer.public_id, answer.key_version, answer.identity.schema) == (None, 1, identity.SCHEMA)


def test_what_would_change_it(world: World) -> None:
    """Computed from the encoding itself: a raised ancestor changes the scope, another key of the scope changes nothing."""
    changes = {change.what: change.components for change in _explain(world).identity.changes}
    assert changes["scope support raised to version 2"] == ("scope",)
    assert changes["scope (root) raised to version 2"] == ("scope",)
    assert changes["another key of the same scope"] == ()
    assert changes["other sampling parameters, other header order"] == ()
    assert changes["another weights revision"] == ("model",)
    assert changes["another version of context org (now v7)"] == ("context",)
    assert changes["sharing level key"] == ("sharing", "key")
    assert changes["sharing level tenant"] == ("sharing", "scope")
    assert changes["sharing level none"] == ("sharing", "key", "request")
    _change(world, sharing="key")
    assert {change.what: change.components for change in _explain(world).identity.changes}["another key of the same scope"] == ("key",)


def test_a_request_alone_has_no_public_id(world: World) -> None:
    """Its nonce is the router's, drawn for each."""
    _change(world, sharing="none")
    answer = _explain(world, roots=BOTH)
    assert answer.public_id is None
    assert next(component for component in answer.identity.components if component.name == "request").value == "(drawn for each request)"


def test_notes_say_what_keeps_it_from_being_served(world: World) -> None:
    """A revoked key, a switched-off endpoint, a suspended tenant, an ignored header, a cache_salt that is dropped."""
    acorn = world.tenants["acorn"]
    _change(world, enabled=False)
    with tenant_scope(acorn):
        key = api_keys.issue_inference(tenant_id=acorn, actor=ACTOR, name="old", endpoints=["other"], now=timezone.now()).key
        api_keys.revoke(tenant_id=acorn, actor=ACTOR, kind=Kind.INFERENCE, key_id=key.id, ceiling=Role.OWNER, now=timezone.now())
        provisioning.suspend(tenant_id=acorn, actor=ACTOR, suspended=True)
    notes = " | ".join(_explain(world, {"X-Session-ID": "s"}, key=str(key.id), cache_salt="mine").notes)
    for part in ("revoked", "suspended", "switched off", "may not use this endpoint", "cache_salt is dropped", "X-Session-ID"):
        assert part in notes


def test_a_client_salt_subdivides_where_the_endpoint_allows(world: World) -> None:
    _change(world, client_subdivision=True)
    plain, divided = _explain(world, roots=BOTH), _explain(world, cache_salt="mine", roots=BOTH)
    assert divided.identity.components[-1].value == "mine"
    assert plain.public_id != divided.public_id
    for wrong in ("", "x" * 129):
        with pytest.raises(Invalid):
            _explain(world, cache_salt=wrong)


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({SCOPE: "sales"}, SCOPE),
        ({SCOPE: ""}, SCOPE),
        ({SCOPE: "nowhere"}, SCOPE),
        ({CONTEXT: "other=1"}, CONTEXT),
        ({CONTEXT: "repo"}, CONTEXT),
        ({CONTEXT: "org=v8"}, CONTEXT),
    ],
)
def test_headers_that_the_router_refuses_are_refused(world: World, headers: dict[str, str], field: str) -> None:
    """By the router's own rules; a scope that is unknown and one not allowed are one answer."""
    with pytest.raises(Invalid) as refused:
        _explain(world, headers)
    assert refused.value.field == field


def test_absent_and_another_tenants_are_the_same(world: World) -> None:
    birch = world.tenants["birch"]
    with tenant_scope(birch):
        foreign = api_keys.issue_inference(tenant_id=birch, actor=ACTOR, name="theirs", now=timezone.now()).key
    for key, model in (("nobody", "chat"), (str(uuid4()), "chat"), (str(foreign.id), "chat"), ("helpdesk", "nothing"), ("theirs", "chat")):
        with pytest.raises(NotFound):
            _explain(world, key=key, model=model)


def test_no_key_salt_or_seed_is_in_the_answer(world: World) -> None:
    """Whole, with the root at hand."""
    acorn = world.tenants["acorn"]
    view = router_view(acorn, sealed_to=NEW, roots=(NEW, OLD))
    key = next(entry for entry in view.snapshot.keys if entry.name == "helpdesk")
    names = view.namespace(view.endpoints["chat"].entry, scope_path="support", key_id=key.id, context={}, subdivision=None)
    text = str(asdict(_explain(world, roots=BOTH))) + _command(world, "--tenant", "acorn", "--key", "helpdesk", "--model", "chat")
    assert names.public_id in text
    secret = [names.salt, names.salt[4:], *spellings(OLD, NEW, names.index_seed, key.digest, world.secrets[acorn])]
    assert not [one for one in secret if one in text]


def _command(world: World, *arguments: str) -> str:
    out = StringIO()
    call_command("namespace", "explain", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_needs_no_root_key(world: World) -> None:
    """Every component in order with its source; header order and case do not matter."""
    asked = ("--tenant", "acorn", "--key", "helpdesk", "--model", "chat", "--header")
    first = _command(world, *asked, f"{SCOPE}: support/emea", "--header", f"{CONTEXT}: repo=a")
    again = _command(world, *asked, f"{CONTEXT.lower()}: repo=a", "--header", f"{SCOPE}:support/emea")
    assert first == again
    places = [first.index(f"\n  {component.name} ") for component in COMPONENTS]
    assert places == sorted(places)
    assert "public id not known here" in first
    assert "sharing level scope" in first


@pytest.mark.parametrize(
    "arguments",
    [
        ("--key", "helpdesk", "--model", "chat"),  # several tenants, none named
        ("--tenant", "nobody", "--key", "helpdesk", "--model", "chat"),
        ("--tenant", "birch", "--key", "helpdesk", "--model", "chat"),
        ("--tenant", "acorn", "--key", "helpdesk", "--model", "chat", "--header", "no colon"),
        ("--tenant", "acorn", "--key", "helpdesk", "--model", "chat", "--header", "A: 1", "--header", "a: 2"),
        ("--tenant", "acorn", "--key", "helpdesk", "--model", "chat", "--header", f"{SCOPE}: sales"),
        ("--tenant", "acorn", "--model", "chat"),
    ],
)
def test_what_the_command_refuses(world: World, arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        _command(world, *arguments)


def test_a_key_whose_scope_is_unknown_cannot_be_explained(world: World) -> None:
    """As in the router: no identity can be built."""
    acorn = world.tenants["acorn"]
    with tenant_scope(acorn):
        key = api_keys.issue_inference(tenant_id=acorn, actor=ACTOR, name="gone", scope_path="sales", now=timezone.now()).key
        api_keys.revoke(tenant_id=acorn, actor=ACTOR, kind=Kind.INFERENCE, key_id=key.id, ceiling=Role.OWNER, now=timezone.now())
        sales: UUID = next(entry.id for entry in publishing.build_snapshot(acorn, now_s=time.time()).scopes if entry.path == "sales")
        scopes.delete(tenant_id=acorn, actor=ACTOR, scope_id=sales)
    with pytest.raises(Invalid, match="scope is gone"):
        _explain(world, key=str(key.id))
