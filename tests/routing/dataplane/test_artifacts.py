"""Artifacts at the router: fetched through a real Valkey as the router's own user, verified, kept on disk, shared fairly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from routing.core import artifact
from routing.core.snapshot import TenantSnapshot
from routing.dataplane.feeds.snapshots import SNAPSHOT, VERSIONS
from routing.prompts.service import Prompts
from tests.fakes.artifacts import TEMPLATE, TOKENIZER, digest, ids_of, naming
from tests.fakes.rig import KEY_A, KEY_B, Rig, named, sealed, until
from tests.routing.dataplane.conftest import MakeRig
from tests.services import Services

PROMPT = {"model": "m-7b", "prompt": "Tell me about salt and bread and water."}


@pytest.fixture
async def valkey(valkey_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(valkey_url) as client:
        yield client


async def put(valkey: Redis, *contents: bytes, under: bytes | None = None, packed: bytes | None = None) -> None:
    """Put contents where the control plane puts them; or something else, under the name of ``under``."""
    for content in contents:
        await valkey.set(artifact.KEY.format(digest(under or content).hex()), packed or artifact.pack(content))


async def live(make_rig: MakeRig, services: Services, valkey: Redis, *documents: TenantSnapshot, **settings: Any) -> Rig:
    """A rig on Valkey, as the router's user there; ``documents`` instead of the rig's own, where given."""
    for document in documents:
        await valkey.set(SNAPSHOT.format(document.tenant_id), sealed(document))
        await valkey.hset(VERSIONS, str(document.tenant_id), str(document.version))
    return await make_rig(valkey_url=services.valkey_url("router"), deliver=not documents, **{"poll_s": 0.02, "tokens_s": 30.0, **settings})


def artifacts(rig: Rig) -> dict[str, Any]:
    """The artifacts in the router's own report."""
    report: dict[str, Any] = msgspec.json.decode(rig.router.snapshots.status())["tokens"]["artifacts"]
    return report


def state(rig: Rig, content: bytes) -> str | None:
    """What the report says of an artifact that is not ready; None for one that is, or is not named."""
    row = artifacts(rig)["others"].get(digest(content).hex())
    return None if row is None else row["state"]


def tokenised(rig: Rig, result: str) -> float:
    """How many prompts had this result."""
    return rig.router.plane.metrics.registry.get_sample_value("saltroute_tokenised_total", {"result": result}) or 0.0


def counted(rig: Rig, name: str, **labels: str) -> float:
    return rig.router.plane.metrics.registry.get_sample_value(name, labels) or 0.0


async def complete(rig: Rig, key: str = KEY_A) -> None:
    """One completion, answered."""
    reply = await rig.call("POST", "/v1/completions", json=PROMPT, key=key)
    assert reply.status == 200, reply.body


async def test_what_a_snapshot_names_is_fetched_and_used(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey)
    await put(valkey, TOKENIZER, TEMPLATE)
    await complete(rig)
    assert tokenised(rig, "undeclared") == 1  # so far no snapshot names any
    rig.publish(naming(rig.acme))
    await until(lambda: artifacts(rig)["ready"] == 2)
    await complete(rig)
    assert tokenised(rig, "exact") == 1
    assert rig.records()[-1].estimated_prompt_tokens == len(ids_of(PROMPT["prompt"]))
    assert counted(rig, "saltroute_artifacts_fetched_total", source="valkey") == 2


async def test_nothing_but_what_snapshots_name_is_fetched(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    """Another artifact in Valkey stays there; one tenant's artifact is of no use to a tenant whose snapshot does not name it."""
    other = TOKENIZER.replace(b"\n", b" ")
    await put(valkey, TOKENIZER, TEMPLATE, other)
    rig = await live(make_rig, services, valkey)
    rig.publish(naming(rig.acme))
    await until(lambda: artifacts(rig)["ready"] == 2)
    assert counted(rig, "saltroute_artifacts_fetched_total", source="valkey") == 2
    assert not rig.router.plane.tokens.prompts.known(digest(other), "tokenizer")
    await complete(rig, KEY_B)
    assert (tokenised(rig, "undeclared"), tokenised(rig, "exact")) == (1, 0)
    await complete(rig)
    assert tokenised(rig, "exact") == 1


async def test_a_missing_artifact_is_history_until_it_comes(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey)
    rig.publish(naming(rig.acme))
    await until(lambda: state(rig, TOKENIZER) == "missing")
    await complete(rig)
    assert tokenised(rig, "no_tokenizer") == 1
    await put(valkey, TOKENIZER, TEMPLATE)  # late, as when the sweep repairs it
    await until(lambda: artifacts(rig)["ready"] == 2)
    await complete(rig)
    assert tokenised(rig, "exact") == 1


@pytest.mark.parametrize(("held", "said"), [(b"SRA1 cut", "damaged"), (artifact.pack(b"{}"), "forged")])
async def test_what_has_another_hash_is_refused(make_rig: MakeRig, services: Services, valkey: Redis, held: bytes, said: str) -> None:
    """Whoever can write to Valkey cannot choose a tenant's tokens."""
    await put(valkey, TEMPLATE)
    await put(valkey, TOKENIZER, packed=held)
    rig = await live(make_rig, services, valkey)
    rig.publish(naming(rig.acme))
    await until(lambda: state(rig, TOKENIZER) == said and artifacts(rig)["ready"] == 1)
    assert counted(rig, "saltroute_artifacts_refused_total", reason=said) >= 1
    await complete(rig)
    assert tokenised(rig, "no_tokenizer") == 1
    await put(valkey, TOKENIZER)
    await until(lambda: artifacts(rig)["ready"] == 2)


async def test_the_disk_serves_when_valkey_does_not(make_rig: MakeRig, services: Services, valkey: Redis, tmp_path: Path) -> None:
    """A router that starts alone has exact tokens from its own disk; what lies there is sealed, and is verified too."""
    await put(valkey, TOKENIZER, TEMPLATE)
    first = await live(make_rig, services, valkey, state_dir=tmp_path / "one")
    first.publish(naming(first.acme))
    await until(lambda: artifacts(first)["ready"] == 2)
    files = sorted((tmp_path / "one" / "artifacts").iterdir())
    assert [file.name for file in files] == sorted(digest(content).hex() for content in (TOKENIZER, TEMPLATE))
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert all(b"SRA1" not in file.read_bytes() for file in files)
    second = await make_rig(state_dir=tmp_path / "one", poll_s=0.02)
    second.publish(naming(second.acme))
    await until(lambda: artifacts(second)["ready"] == 2)
    assert counted(second, "saltroute_artifacts_fetched_total", source="disk") == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    third = await make_rig(state_dir=tmp_path / "one", poll_s=0.02)
    third.publish(naming(third.acme))
    await until(lambda: state(third, TOKENIZER) == state(third, TEMPLATE) == "missing")
    assert not any(file.exists() for file in files)


async def test_the_disk_is_bounded_and_what_nobody_names_goes_first(make_rig: MakeRig, services: Services, valkey: Redis, tmp_path: Path) -> None:
    """Room for two: of three tokenizers the one named first has gone when the last has come, and nothing goes that is in use."""
    folder = tmp_path / "one" / "artifacts"
    many = [TOKENIZER.replace(b"\n", b" " * number) for number in range(1, 4)]
    room = 2 * (len(artifact.pack(TOKENIZER)) + 200)
    await put(valkey, *many)
    rig = await live(make_rig, services, valkey, state_dir=tmp_path / "one", artifact_disk_bytes=room)

    def left() -> set[str]:
        return {file.name for file in folder.iterdir()} if folder.exists() else set()

    def there(content: bytes) -> bool:
        return digest(content).hex() in left() and artifacts(rig)["ready"] == 1

    for content in many:
        rig.publish(naming(rig.acme, content, None))
        await until(partial(there, content))
    assert left() == {digest(content).hex() for content in many[1:]}
    assert counted(rig, "saltroute_artifacts_dropped_total", where="disk") == 1


async def test_a_tenant_with_much_leaves_room_for_one_with_little(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    """Memory is full of globex's; acme, within its share, still gets in. Globex's own next one does not: it would be beyond its share."""
    many = [TOKENIZER.replace(b"\n", b" " * number) for number in range(1, 5)]
    await put(valkey, TOKENIZER, TEMPLATE, *many)
    rig = await live(make_rig, services, valkey, artifact_bytes=len(TOKENIZER) * 3 + 2000)
    model = naming(rig.globex).endpoints[0].model

    def one(number: int, content: bytes) -> Any:
        ref = msgspec.structs.replace(model.tokenizer, digest=digest(content))
        changed = msgspec.structs.replace(model, tokenizer=ref, chat_template=type(ref)())
        return msgspec.structs.replace(rig.globex.endpoints[0], id=named(f"e{number}"), name=f"e{number}", model=changed)

    endpoints = tuple(one(number, content) for number, content in enumerate(many))
    rig.publish(msgspec.structs.replace(rig.globex, version=2, endpoints=endpoints))
    await until(lambda: artifacts(rig)["ready"] == 3 and [row["state"] for row in artifacts(rig)["others"].values()] == ["full"])
    rig.publish(naming(rig.acme))
    prompts = rig.router.plane.tokens.prompts
    await until(lambda: prompts.known(digest(TOKENIZER), "tokenizer") and prompts.known(digest(TEMPLATE), "chat_template"))
    await until(lambda: state(rig, TOKENIZER) is None and state(rig, TEMPLATE) is None)
    assert artifacts(rig)["bytes"] <= len(TOKENIZER) * 3 + 2000
    assert counted(rig, "saltroute_artifacts_dropped_total", where="memory") >= 2
    await complete(rig)
    assert tokenised(rig, "exact") == 1


async def test_what_no_snapshot_names_any_more_is_forgotten(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    await put(valkey, TOKENIZER, TEMPLATE)
    rig = await live(make_rig, services, valkey)
    rig.publish(naming(rig.acme))
    await until(lambda: artifacts(rig)["ready"] == 2)
    rig.publish(naming(rig.acme, None, None))
    await until(lambda: artifacts(rig)["ready"] == 0)
    assert artifacts(rig)["bytes"] == 0
    assert not rig.router.plane.tokens.prompts.known(digest(TOKENIZER), "tokenizer")


async def test_a_router_may_read_artifacts_and_not_write_them(services: Services, valkey: Redis) -> None:
    await put(valkey, TEMPLATE)
    key = artifact.KEY.format(digest(TEMPLATE).hex())
    async with Redis.from_url(services.valkey_url("router")) as client:
        assert await client.get(key) is not None
        with pytest.raises(NoPermissionError):
            await client.set(key, b"mine")
        with pytest.raises(NoPermissionError):
            await client.delete(key)


async def test_a_report_names_a_bounded_number(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    """A tenant with artifacts that never come does not make every report long."""
    rig = await live(make_rig, services, valkey)
    first = naming(rig.acme).endpoints[0]

    def one(number: int) -> Any:
        ref = msgspec.structs.replace(first.model.tokenizer, digest=digest(b"%d" % number))
        return msgspec.structs.replace(first, id=named(f"e{number}"), name=f"e{number}", model=msgspec.structs.replace(first.model, tokenizer=ref))

    rig.publish(msgspec.structs.replace(rig.acme, version=9, endpoints=tuple(one(number) for number in range(150))))
    await until(lambda: len(artifacts(rig)["others"]) == 100)


class Stuck(Prompts):
    """A service whose sandbox never comes back from one tenant's artifacts."""

    def __init__(self, owner: bytes) -> None:
        super().__init__()
        self._owner = owner

    async def admit(self, digest: bytes, kind: Any, *, owner: bytes = b"", deadline_s: float = 20.0) -> Any:
        if owner == self._owner:
            await asyncio.Event().wait()
        return await super().admit(digest, kind, owner=owner, deadline_s=deadline_s)


async def test_a_tenant_whose_artifacts_never_compile_delays_nobody(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    """Acme names five that hang, and the two that globex names as well: globex has its two, fetched and compiled in its own name."""
    bad = [TOKENIZER.replace(b"\n", b" " * number) for number in range(1, 6)]
    await put(valkey, TOKENIZER, TEMPLATE, *bad)
    rig = await live(make_rig, services, valkey)
    stuck = Stuck(rig.acme.tenant_id.bytes)
    rig.router.plane.tokens.prompts = rig.router.artifacts._prompts = stuck
    endpoint = naming(rig.acme).endpoints[0]

    def one(number: int, content: bytes) -> Any:
        ref = msgspec.structs.replace(endpoint.model.tokenizer, digest=digest(content))
        changed = msgspec.structs.replace(endpoint.model, tokenizer=ref)
        return msgspec.structs.replace(endpoint, id=named(f"e{number}"), name=f"e{number}", model=changed)

    rig.publish(
        msgspec.structs.replace(rig.acme, version=2, endpoints=tuple(one(number, content) for number, content in enumerate([*bad, TOKENIZER])))
    )
    rig.publish(naming(rig.globex))
    await until(lambda: artifacts(rig)["ready"] == 2)
    assert state(rig, TOKENIZER) is None
    assert state(rig, TEMPLATE) is None
    await complete(rig, KEY_B)
    await stuck.stop()
