"""Another tenant's id in every place that takes one: the answer is that for an id which nobody has, byte for byte, and nothing is stored.

The places come from the API's own description, so an operation added later is tried without a word here. A caller with every right in its own tenant
sends, in turn, each id and name of another tenant, and something drawn of the same kind. *Nothing is stored* compares everything both tenants hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode
from zlib import crc32

import pytest

from tests.contracts.surface import (
    TENANT_HEADER,
    Operation,
    Place,
    drawn,
    dump,
    furnished,
    kind_of,
    listed,
    names_of,
    operations,
    places,
    tried,
    unlike,
    whole,
)
from tests.tenants.houses import House, platform_api

Answer = tuple[int, bytes]

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]

# Places where a name or id of one's own is taken and an unknown one refused; were the walk to miss them, it would prove nothing.
REFERENCES = {
    "adapters_create model",
    "endpoints_change adapter",
    "endpoints_change model",
    "endpoints_change pool",
    "endpoints_change routing_policy",
    "endpoints_create adapter",
    "endpoints_create model",
    "endpoints_create pool",
    "endpoints_create routing_policy",
    "endpoints_create slo",
    "endpoints_dry_run policy",
    "endpoints_try policy",
    "keys_issue scope",
    "models_change chat_template_sha256",
    "models_create tokenizer_sha256",
    "replica_checks_create endpoint",
    "replica_checks_create pool",
    "replicas_create pool",
}


OTHERS = 1  # values sent to each place besides those that fit it


class Walk:
    """A caller with every right in its own tenant, and what it tries to find out about another."""

    def __init__(self, own: House, other: House) -> None:
        self.api = own.api()
        self.houses = (own, other)
        shared = set(names_of(own).values())
        self.other = {label: value for label, value in names_of(other).items() if value not in shared}
        rows = {resource: row for resource, row in listed(self.api).items() if "id" in row}
        self.own = {resource: str(row["id"]) for resource, row in rows.items()}
        self.own_names = {resource: str(row.get("sha256") or row.get("name") or row.get("path") or row["id"]) for resource, row in rows.items()}
        self.tried = 0
        self.told: list[str] = []
        self.stored: list[str] = []
        self._held: list[object] | None = None  # what the tenants held when it was last looked at

    def values(self, operation: Operation, place: str) -> list[str]:
        """What is sent to a place: whatever of the other tenant's its name or the operation's resource may mean, and a few of the rest in turn."""
        stem = place.removesuffix("_policy").removesuffix("_sha256")
        meant = {operation.resource, f"{place}s", f"{place}-policies", f"{stem}-policies", "artifacts" if stem != place else ""}
        fitting = [label for label in self.other if label in ("tenant id", "slug") or label.split()[0] in meant]
        rest = [label for label in self.other if label not in fitting]
        turn = crc32(f"{operation.id} {place}".encode()) % len(rest)
        return [self.other[label] for label in [*fitting, *(rest[turn:] + rest[:turn])[:OTHERS]]]

    def path(self, operation: Operation, **given: str) -> str:
        """The path with an own object in it, but for what is given."""
        filled = operation.path
        for name in operation.named("path"):
            value = given.get(name) or self.own.get(operation.resource, self.houses[0].slug)
            filled = filled.replace("{" + name + "}", quote(value, safe=""))
        return filled

    def compare(self, where: str, values: Iterable[str], send: Callable[[str], Answer]) -> list[Answer]:
        """Send each value, and for each kind of value one that nobody has. Notes every answer that tells them apart: refusals must be the same
        bytes, successes the same but for what is drawn anew for each. Returns the answers to what nobody has."""
        unknown: dict[str, tuple[str, Answer]] = {}
        for value in values:
            kind = kind_of(value)
            if kind not in unknown:
                nobodys = drawn(kind)
                unknown[kind] = (nobodys, send(nobodys))
            (nobodys, absent), foreign = unknown[kind], send(value)
            self.tried += 1
            if foreign != absent and (foreign[0] != absent[0] or unlike(foreign[1], value) != unlike(absent[1], nobodys)):
                self.told.append(f"{where} = {value}: {foreign} but for {nobodys}: {absent}")
        return [answer for _, answer in unknown.values()]

    @contextmanager
    def nothing_stored(self, where: str) -> Iterator[None]:
        """Note it if either tenant holds anything else afterwards. A walk takes back all it did, so what was held at the end of one block is what is
        held at the beginning of the next."""
        before = self._held or [dump(house.id) for house in self.houses]
        yield
        self._held = [dump(house.id) for house in self.houses]
        if self._held != before:
            self.stored.append(where)

    def assert_told_nothing(self) -> None:
        assert (self.told, self.stored) == ([], [])


@pytest.fixture
def walk(db: None) -> Walk:
    platform_api()
    return Walk(furnished("acorn", 9101), furnished("birch", 9102))


def test_the_tenants_have_one_of_everything(walk: Walk) -> None:
    """What a walk sends: an id of (nearly) every table, and a name for every list."""
    assert {"routing_endpoint", "routing_policyversion", "tenants_apikey", "routing_decisionrow", "namespaces_tenantkeyversion"} <= set(walk.other)
    assert {"pools name", "models name", "scopes path", "members email", "artifacts sha256"} <= set(walk.other)
    assert len(walk.own) >= 12


def test_in_every_path(walk: Walk) -> None:
    for operation in operations():
        body = whole(operation, walk.own_names) if operation.body else None
        for name in operation.named("path"):

            def send(value: str, name: str = name, operation: Operation = operation, body: Any = body) -> Answer:
                return tried(walk.api, operation.method, walk.path(operation, **{name: value}), body)

            with walk.nothing_stored(operation.id):
                answers = walk.compare(f"{operation.id} {name}", walk.values(operation, name), send)
            if name == "reference":
                assert {status for status, _ in answers} <= {403, 404}, operation.id
    walk.assert_told_nothing()
    assert walk.tried >= 3 * sum(len(operation.named("path")) for operation in operations()) > 100


def test_in_every_body(walk: Walk) -> None:
    references: set[str] = set()
    for operation in operations():
        base, path = whole(operation, walk.own_names), walk.path(operation)
        accepted = bool(operation.body) and tried(walk.api, operation.method, path, base)[0] < 400
        for place in places(operation):

            def send(value: str, place: Place = place, operation: Operation = operation, base: Any = base, path: str = path) -> Answer:
                return tried(walk.api, operation.method, path, {**base, place.property: place.filled(value)})

            with walk.nothing_stored(operation.id):
                answers = walk.compare(f"{operation.id} {place.property} ({place.shape})", walk.values(operation, place.property), send)
            if accepted and any(status >= 400 for status, _ in answers):
                references.add(f"{operation.id} {place.property}")
    walk.assert_told_nothing()
    assert references >= REFERENCES


def test_in_every_query(walk: Walk) -> None:
    for operation in operations():
        body = whole(operation, walk.own_names) if operation.body else None
        for name in operation.named("query"):

            def send(value: str, name: str = name, operation: Operation = operation, body: Any = body) -> Answer:
                return tried(walk.api, operation.method, f"{walk.path(operation)}?{urlencode({name: value})}", body)

            with walk.nothing_stored(operation.id):
                if name == "cursor":  # a place in one's own list, where two values may well lie on two sides of a row
                    _assert_nothing_of_the_other_in(walk, send)
                else:
                    walk.compare(f"{operation.id} ?{name}", walk.values(operation, name), send)
    walk.assert_told_nothing()


def _assert_nothing_of_the_other_in(walk: Walk, send: Callable[[str], Answer]) -> None:
    for value in (walk.houses[1].slug, str(walk.houses[1].id)):
        status, content = send(value)
        assert status < 500
        assert b"birch" not in unlike(content, value)


def test_in_every_header(walk: Walk) -> None:
    """The tenant's header on every operation, and any other header that an operation describes, with the key of another tenant's repeat among the
    values."""
    slug = walk.houses[1].slug
    for operation in operations():
        body = whole(operation, walk.own_names) if operation.body else None
        for name in sorted({TENANT_HEADER, *operation.named("header")}):

            def send(value: str, name: str = name, operation: Operation = operation, body: Any = body) -> Answer:
                return tried(walk.api, operation.method, walk.path(operation), body, **{name.replace("-", "_"): value})

            with walk.nothing_stored(operation.id):
                answers = walk.compare(f"{operation.id} {name}", (slug, str(walk.houses[1].id), f"{slug}-repeat"), send)
            if name == TENANT_HEADER and name in operation.named("header"):
                assert {status for status, _ in answers} <= {403, 404}, operation.id
    walk.assert_told_nothing()


def test_the_walk_sees_what_it_looks_for(walk: Walk) -> None:
    """The control: one's own id is not answered like an unknown one, and a change is seen in what is stored."""
    (read,) = [operation for operation in operations() if operation.id == "pools_read"]
    walk.compare("pools_read", [walk.own["pools"]], lambda value: tried(walk.api, "GET", walk.path(read, reference=value)))
    assert len(walk.told) == 1
    with walk.nothing_stored("scopes_create"):
        assert walk.api.post("scopes", {"path": "another"}).status_code == 201
    with walk.nothing_stored("nothing"):
        pass
    assert walk.stored == ["scopes_create"]
