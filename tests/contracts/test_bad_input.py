"""Odd input over the whole product: a clear refusal that names the field, nothing stored, nothing shared.

The control API is walked by its own description and the data plane by its register of routes, so what is added later is tried too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

from routing.dataplane.routes import ENGINE_ROUTES, Route
from tests.contracts.surface import drawn, dump, furnished, operations, places, tried, whole
from tests.contracts.test_strangers import Walk
from tests.fakes.rig import KEY_A, KEY_A_EMEA, KEY_B, Rig, bumped, endpoint, standard_rig

SALT_LIKE = "sr1-" + "A" * 43
# Two spellings that look alike must not become two names, nor one: what cannot be told apart is refused wherever people name things.
ODD_TEXTS = {
    "decomposed": "cafe\u0301",
    "right-to-left mark": "na\u200fme",
    "right-to-left override": "na\u202eme",
    "zero width": "na\u200bme",
    "byte order mark": "\ufeffname",
    "control character": "na\x07me",
    "line separator": "na\u2028me",
    "private use": "na\ue000me",
    "overlong": "x" * 10_000,
}
TEXTS_A_PLACE = 3  # of those above, in turn
ODD_VALUES: dict[str, Any] = {"list": ["x"], "object": {"x": "y"}, "number": 7, "true": True}
ODD_PATHS = {
    "decomposed": "supporte\u0301",
    "composed": "support\u00e9",
    "right-to-left mark": "sup\u200fport",
    "full width": "\uff53upport",
    "zero width": "sup\u200bport",
    "dotless": "support/em\u0131a",
    "overlong segment": "s" * 64,
    "too deep": "/".join("abcdefghi"),
    "dots": "..",
    "dots inside": "support/../support",
    "one dot": "support/.",
    "empty segment": "support//emea",
    "leading slash": "/support",
    "trailing slash": "support/",
    "upper case": "Support",
    "white space": "sup port",
    "white space at the end": "support ",
    "backslash": "support\\emea",
    "escaped slash": "support%2Femea",
    "NUL": "support\0",
}


# ---- the control API --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def walk(db: None) -> Walk:
    return Walk(furnished("acorn", 9101), furnished("birch", 9102))


def few(texts: dict[str, str], place: str) -> list[tuple[str, str]]:
    """Some of the texts, other ones at other places."""
    turn = crc32(place.encode()) % len(texts)
    return (list(texts.items()) * 2)[turn : turn + TEXTS_A_PLACE]


@pytest.mark.django_db
@pytest.mark.timeout(300)
def test_odd_texts_are_refused_in_every_body(walk: Walk) -> None:
    """In every place of every body that takes a text. The refusal names the property; a value is never made to fit."""
    faults: list[str] = []
    for operation in operations():
        base, path = whole(operation, walk.own_names), walk.path(operation)
        before = dump(walk.houses[0].id)
        for place in places(operation):
            for kind, text in few(ODD_TEXTS, f"{operation.id} {place}"):
                status, content = tried(walk.api, operation.method, path, {**base, place.property: place.filled(text)})
                walk.tried += 1
                if status in (403, 404):  # an operator's alone; or a reference, and nobody has a name like that
                    continue
                error = msgspec.json.decode(content)["error"] if 400 <= status < 500 else {}
                if place.property not in (error.get("field") or "") and error.get("code") != "malformed":
                    faults.append(f"{operation.id} {place.property} ({place.shape}), {kind}: {status} {content[:200]!r}")
        if dump(walk.houses[0].id) != before:
            faults.append(f"{operation.id} stored something")
    assert faults == []
    assert walk.tried > 200


@pytest.mark.django_db
@pytest.mark.timeout(300)
def test_values_of_another_type_are_refused_in_every_body(walk: Walk) -> None:
    faults: list[str] = []
    for operation in operations():
        base, path = whole(operation, walk.own_names), walk.path(operation)
        shapes = {place.property: {one.shape for one in places(operation) if one.property == place.property} for place in places(operation)}
        for name in (name for name, found in shapes.items() if found == {"text"}):
            for kind, value in ODD_VALUES.items():
                status, content = tried(walk.api, operation.method, path, {**base, name: value})
                if status != 403 and (status != 400 or msgspec.json.decode(content)["error"]["field"] != name):
                    faults.append(f"{operation.id} {name}, {kind}: {status} {content[:200]!r}")
    assert faults == []


@pytest.mark.django_db
def test_odd_scope_paths_are_refused_wherever_one_is_given(walk: Walk) -> None:
    assert walk.api.post("scopes", {"path": "support"}).status_code == 201
    before = dump(walk.houses[0].id)
    for kind, path in ODD_PATHS.items():
        created, issued = walk.api.post("scopes", {"path": path}), walk.api.post("keys", {"name": "app", "scope": path})
        for answer, field in ((created, "path"), (issued, "scope")):
            assert answer.status_code == 400, kind
            assert answer.json()["error"]["code"] in ("invalid", "malformed"), kind
            assert answer.json()["error"]["field"] in (field, None), kind
    assert dump(walk.houses[0].id) == before


@pytest.mark.django_db
def test_no_name_that_an_engine_sees_looks_like_a_salt(walk: Walk) -> None:
    """Engines publish adapter names and salts side by side: one must not be able to pass for the other."""
    own = walk.own_names
    endpoint = {"name": "another", "pool": own["pools"], "model": own["models"]}
    before = dump(walk.houses[0].id)
    for name in (SALT_LIKE, SALT_LIKE.upper(), "sr1-", "SR1-x"):
        for method, path, body, field in (
            ("POST", "adapters", {"model": own["models"], "name": name, "revision": "r1"}, "name"),
            ("POST", "models", {"name": name, "revision": "r1"}, "name"),
            ("POST", "endpoints", {**endpoint, "name": name}, "name"),
            ("POST", "endpoints", {**endpoint, "served_model": name}, "served_model"),
            ("PATCH", f"endpoints/{own['endpoints']}", {"served_model": name}, "served_model"),
        ):
            answer = walk.api.call(method, path, body)
            assert (answer.status_code, answer.json()["error"]["field"]) == (400, field), f"{method} {path} {name}"
    assert dump(walk.houses[0].id) == before


@pytest.mark.django_db
def test_what_is_not_one_json_object_is_refused_by_every_operation_with_a_body(walk: Walk) -> None:
    """Not JSON, not an object, not Unicode, a lone surrogate, a NUL, too deep: never a mistake of ours, and nothing stored."""
    texts = (b"{", b"[]", b"7", b'"x"', b'{"a":NaN}', b"\xff", b'{"a":"\\ud800"}', b'{"name":"a\\u0000b"}', b"[" * 100_000, b'{"no such field":1}')
    before = dump(walk.houses[0].id)
    for operation in operations():
        for text in texts if operation.body else ():
            answer = walk.api.call(operation.method, walk.path(operation), raw=text)
            assert 400 <= answer.status_code < 500, (operation.id, text[:40], answer.content[:200])
            assert answer.json()["error"]["code"] in ("malformed", "invalid", "forbidden"), (operation.id, text[:40], answer.content[:200])
    assert dump(walk.houses[0].id) == before


# ---- the data plane ---------------------------------------------------------------------------------------------------------------------------

BODIES: dict[str, dict[str, Any]] = {
    "chat_completions": {"model": "m-7b", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m-7b", "prompt": "hi"},
}
ODD_SALTS: dict[str, Any] = {
    "129 characters": "x" * 129,
    "empty": "",
    "list": ["x"],
    "list of lists": [["x"]],
    "object": {"cache_salt": "x"},
    "number": 7,
    "true": True,
}
routes = pytest.mark.parametrize("route", ENGINE_ROUTES, ids=lambda route: route.name)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(standard_rig(tmp_path / "state"))


@routes
@pytest.mark.parametrize("salt", ODD_SALTS.values(), ids=ODD_SALTS)
async def test_an_odd_client_salt_never_reaches_an_engine(rig: Rig, route: Route, salt: Any) -> None:
    """Refused by name, whether clients may subdivide their namespace or not."""
    for divides in (False, True):
        rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], client_subdivision=divides),)))
        refused = await rig.call("POST", route.path, json={**BODIES[route.name], "cache_salt": salt})
        assert (refused.status, refused.error["param"]) == (400, "cache_salt")
    assert rig.served() == 0
    rig.assert_nothing_held()


@routes
@pytest.mark.parametrize(
    "member",
    [
        b'"cache_salt":"one","cache_salt":"two"',
        b'"cache_salt":"one","cache\\u005fsalt":"two"',
        b'"vllm_xargs":{"cache_salt":"one","cache_salt":"two"}',
        b'"nvext":{"cache_salt":"one"},"nvext":{}',
        b'"model":"other"',
        b'"extra_body":{"a":{"b":[{"priority":1,"priority":2}]}}',
    ],
)
async def test_a_member_named_twice_is_refused_on_every_route(rig: Rig, route: Route, member: bytes) -> None:
    body = msgspec.json.encode(BODIES[route.name])[:-1] + b"," + member + b"}"
    refused = await rig.call("POST", route.path, body=body)
    assert (refused.status, refused.error["type"]) == (400, "invalid_request_error")
    assert rig.served() == 0
    rig.assert_nothing_held()


@routes
@pytest.mark.parametrize("path", [path for path in ODD_PATHS.values() if path.isprintable() and path == path.strip()])
async def test_an_odd_scope_is_the_one_refusal_on_every_route(rig: Rig, route: Route, path: str) -> None:
    unknown = await rig.call("POST", route.path, json=BODIES[route.name], headers={"X-Saltroute-Scope": drawn("slug")})
    refused = await rig.call("POST", route.path, json=BODIES[route.name], headers={"X-Saltroute-Scope": path})
    assert (refused.status, refused.body) == (unknown.status, unknown.body)
    assert refused.status == 403
    assert rig.served() == 0


@routes
async def test_what_names_another_tenant_changes_nothing(rig: Rig, route: Route) -> None:
    """Another tenant's slug, ids, key and salt in headers, path and body: the caller's own namespace, or the answer for what nobody has."""
    other, foreign_salt = rig.globex, rig.namespace(KEY_B).salt
    headers = {
        "X-Tenant-Id": str(other.tenant_id),
        "X-Saltroute-Tenant": other.slug,
        "X-Cache-Salt": foreign_salt,
        "X-Session-ID": str(other.tenant_id),
        "X-Scope-OrgID": other.slug,
    }
    body = {**BODIES[route.name], "cache_salt": foreign_salt, "user": other.slug, "metadata": {"tenant": str(other.tenant_id)}}
    assert (await rig.call("POST", route.path, json=body, headers=headers)).status == 200
    assert rig.received()["cache_salt"] == rig.namespace().salt
    assert foreign_salt not in {*map(str, rig.received().values())}
    for scope in (other.scopes[1].id, other.slug, f"/t/{other.slug}"):
        there = await rig.call("POST", route.path, json=BODIES[route.name], headers={"X-Saltroute-Scope": str(scope)})
        nowhere = await rig.call("POST", route.path, json=BODIES[route.name], headers={"X-Saltroute-Scope": drawn("id")})
        assert (there.status, there.body) == (nowhere.status, nowhere.body)
    for key in (KEY_A, KEY_A_EMEA):
        there = await rig.call("POST", f"/t/{other.slug}{route.path}", json=BODIES[route.name], key=key)
        nowhere = await rig.call("POST", f"/t/{drawn('slug')}{route.path}", json=BODIES[route.name], key=key)
        assert (there.status, there.body) == (nowhere.status, nowhere.body)
        assert there.status == 401
    assert rig.served() == 1


@routes
async def test_another_tenants_model_is_one_that_nobody_has(rig: Rig, route: Route) -> None:
    theirs = endpoint(rig.globex.pools[0], "globex-only")
    rig.publish(bumped(rig.globex, endpoints=(*rig.globex.endpoints, theirs)))
    there = await rig.call("POST", route.path, json={**BODIES[route.name], "model": "globex-only"})
    nowhere = await rig.call("POST", route.path, json={**BODIES[route.name], "model": "nobody-only"})
    assert there.status == 404
    assert there.body.replace(b"globex-only", b"nobody-only") == nowhere.body
    assert (await rig.call("POST", route.path, json={**BODIES[route.name], "model": SALT_LIKE})).status == 404
    assert rig.served() == 0
