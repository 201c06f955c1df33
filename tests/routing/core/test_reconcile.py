"""Each kind of contradiction is seen, and is not seen where nothing contradicts; nothing is said of anybody else's objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.findings import KINDS, Finding, State, settle
from routing.core.reconcile import of_fleet, of_tenant
from routing.core.reconcile_facts import (
    AlarmFact,
    Assignment,
    EndpointFact,
    EngineWord,
    FleetFacts,
    Mismatch,
    Rank,
    ReplicaFact,
    RouterWord,
    TenantFacts,
)

TENANT, OTHER, POOL, ENDPOINT = (UUID(int=number) for number in range(1, 5))
URL, URL_B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"
DIGEST = "ab" * 32
ENGINE = EngineWord(condition="ok", build="b1", models=frozenset({"m"}), block_tokens=32, capacity_tokens=10_000, ranks=(Rank(0, "exact"),))
ROUTER = RouterWord("r1", 0.0, versions={TENANT: 7}, engines={URL: ENGINE, URL_B: ENGINE})
A = ReplicaFact(UUID(int=10), "a", POOL, "gpu", URL, "active", build="b1", kv_events=True, block_tokens_before=32, capacity_tokens_before=10_000)
B = replace(A, id=UUID(int=11), name="b", url=URL_B)
CHAT = EndpointFact(ENDPOINT, "chat", POOL, "gpu", own=True, served_model="m", urls=(URL, URL_B), artifacts=((DIGEST, "tokenizer"),))
FACTS = TenantFacts(TENANT, "acorn", 7, 7, replicas=(A, B), endpoints=(CHAT,))
MISMATCH = Mismatch(ENDPOINT, A.id, "chat-1", 5)
AWAY: dict[str, Any] = {"condition": "failing (active)", "away_since_s": 60.0, "away_for_s": 30.0}
ALARM = AlarmFact(ENDPOINT, "chat", A.id, "gpu/a", count=4, unaudited=False, isolated=False)


def seen(facts: TenantFacts, *routers: RouterWord) -> list[Finding]:
    return list(of_tenant(facts, routers or (ROUTER,)))


def engine(**changes: Any) -> RouterWord:
    """The router, with another word on the engine of replica a."""
    return replace(ROUTER, engines={URL: replace(ENGINE, **changes), URL_B: ENGINE})


def replica(**changes: Any) -> TenantFacts:
    return replace(FACTS, replicas=(replace(A, **changes), B))


def test_where_all_agree_nothing_is_found() -> None:
    """The control of every case below."""
    assert seen(FACTS) == []
    assert seen(FACTS, ROUTER, replace(ROUTER, router_id="r2")) == []


CASES: dict[str, tuple[TenantFacts, tuple[RouterWord, ...], str, str]] = {
    "snapshot_unpublished": (replace(FACTS, published_version=6), (ROUTER,), str(TENANT), "version 6"),
    "snapshot_unpublished, none": (replace(FACTS, published_version=None), (ROUTER,), str(TENANT), "holds nothing"),
    "snapshot_unpublished, lost": (replace(FACTS, document=False), (ROUTER,), str(TENANT), "holds nothing"),
    "snapshot_ahead": (replace(FACTS, published_version=9), (ROUTER,), str(TENANT), "restored from a backup"),
    "snapshot_refused": (FACTS, (replace(ROUTER, refused={TENANT: "invalid"}),), "r1", "does not open"),
    "router_behind": (FACTS, (ROUTER, replace(ROUTER, router_id="r2", versions={TENANT: 6})), "r2", "runs version 6; version 7"),
    "router_behind, new": (FACTS, (ROUTER, RouterWord("r2", 0.0, engines=ROUTER.engines)), "r2", "does not know this tenant"),
    "artifact_missing": (FACTS, (replace(ROUTER, artifacts={DIGEST: "missing"}),), str(ENDPOINT), "not in use at r1 (missing)"),
    "replica_unseen": (FACTS, (replace(ROUTER, engines={URL_B: ENGINE}),), str(A.id), "the only router with this configuration does not know it"),
    "replica_unreachable": (FACTS, (engine(**AWAY),), str(A.id), "No router reaches gpu/a since 1970-01-01 00:01:00 UTC (does not answer health"),
    "replica_unreachable, lost events": (FACTS, (engine(**AWAY, ranks=(Rank(0, "degraded", "stale"),)),), str(A.id), "No router reaches gpu/a"),
    "replica_unreachable, one does not know": (
        FACTS,
        (engine(**AWAY), replace(engine(condition="unknown"), router_id="r2")),
        str(A.id),
        "No router reaches gpu/a",
    ),
    "replica_reach_disputed": (
        FACTS,
        (engine(**AWAY), replace(ROUTER, router_id="r2")),
        str(A.id),
        "cannot be reached from r1 since 1970-01-01 00:01:00 UTC (does not answer health checks), and from 1 of 2 routers it can",
    ),
    "model_not_served": (FACTS, (engine(models=frozenset({"other"})),), str(ENDPOINT), "gpu/a does not serve"),
    "build_unnoticed": (FACTS, (engine(build="b2"),), str(A.id), "another build"),
    "build_unaudited": (replica(unaudited_build=True), (ROUTER,), str(A.id), "no audit has tried"),
    "build_disputed": (FACTS, (ROUTER, replace(engine(build="b2"), router_id="r2")), str(A.id), "2 builds"),
    "block_size_changed": (replica(block_tokens_before=16), (ROUTER,), str(A.id), "held 16 tokens and hold 32"),
    "block_size_disputed": (FACTS, (ROUTER, replace(engine(block_tokens=16), router_id="r2")), str(A.id), "told 16 and 32 tokens"),
    "block_size_disputed, events": (FACTS, (engine(ranks=(Rank(0, "history", "block_size"),)),), str(A.id), "another size than its metrics"),
    "block_size_mixed": (
        replica(block_tokens_before=None),
        (engine(block_tokens=16),),
        str(POOL),
        "16, 32 tokens",
    ),
    "capacity_changed": (replica(capacity_tokens_before=8000), (ROUTER,), str(A.id), "held 8000 tokens and holds 10000"),
    "capacity_mixed": (replica(capacity_tokens_before=None), (engine(capacity_tokens=5000),), str(POOL), "from 5000 to 10000"),
    "residency_degraded": (
        FACTS,
        (engine(ranks=(Rank(0, "degraded", "gap", 60.0),)),),
        str(A.id),
        "1970-01-01 00:01:00 UTC: r1: degraded, reports lost",
    ),
    "residency_degraded, one rank": (FACTS, (engine(ranks=(Rank(0, "exact"), Rank(1, "history", "unknown spec"))),), str(A.id), "rank 1: history"),
    "residency_degraded, no tokens": (FACTS, (engine(ranks=(Rank(0, "history", "no_tokens"),)),), str(A.id), "r1: history, no tokenizer here"),
    "parity_broken, and residency with it": (
        FACTS,
        (replace(engine(ranks=(Rank(0, "history", "parity"),)), mismatches=(MISMATCH,)),),
        str(ENDPOINT),
        "The endpoint is matched by history",
    ),
    "parity_broken": (
        FACTS,
        (replace(ROUTER, mismatches=(Mismatch(ENDPOINT, A.id, "chat-1", 5),)),),
        str(ENDPOINT),
        "at gpu/a than here (chat-1, from token 5",
    ),
    "parity_inexact": (
        FACTS,
        (replace(ROUTER, mismatches=(Mismatch(ENDPOINT, A.id, "question", inexact="special_tokens"),)),),
        str(ENDPOINT),
        "(question) has tokens at gpu/a and none here (special tokens unknown)",
    ),
    "reuse_contradicted": (FACTS, (engine(trust="demote"),), str(A.id), "demote"),
    "assignment_void": (replica(assignment=Assignment(void=True)), (ROUTER,), str(A.id), "no effect"),
    "assignment_dead": (replica(assignment=Assignment(dead="its key was revoked")), (ROUTER,), str(A.id), "its key was revoked"),
    "assignment_idle": (replica(assignment=Assignment(idle_days=7)), (ROUTER,), str(A.id), "7 days"),
    "alarm_unaudited": (replace(FACTS, alarms=(replace(ALARM, unaudited=True),)), (ROUTER,), str(ENDPOINT), "4 requests at gpu/a through chat"),
    "alarm_contradicted": (replace(FACTS, alarms=(replace(ALARM, isolated=True),)), (ROUTER,), str(ENDPOINT), "although audits passed"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_found_and_explained(name: str) -> None:
    """One thing is wrong, and that is what is found: its kind, its subject, and words that say it."""
    facts, routers, subject_id, words = CASES[name]
    (found,) = seen(facts, *routers)
    assert (found.kind, found.subject_id) == (name.partition(",")[0], subject_id)
    assert words in found.explanation
    assert found.subject


FLEET = FleetFacts(urls=frozenset({URL, URL_B}), tenants=frozenset({TENANT, OTHER}), deleted={OTHER: 9}, routers_before={"r1": 0.0})
FLEET_CASES: dict[str, tuple[FleetFacts, tuple[RouterWord, ...], str]] = {
    "no_router": (replace(FLEET, routers_before={}), (), "routers"),
    "router_silent": (replace(FLEET, routers_before={"r1": 0.0, "r2": 0.0}), (ROUTER,), "r2"),
    "router_out_of_contact": (FLEET, (replace(ROUTER, state="stale"),), "r1"),
    "ghost_engine": (replace(FLEET, urls=frozenset({URL})), (ROUTER,), URL_B),
    "ghost_tenant": (FLEET, (replace(ROUTER, versions={TENANT: 7, ENDPOINT: 1}),), str(ENDPOINT)),
    "deleted_tenant_served": (FLEET, (replace(ROUTER, versions={TENANT: 7, OTHER: 8}),), str(OTHER)),
}


@pytest.mark.parametrize("name", FLEET_CASES)
def test_it_is_found_in_the_fleet(name: str) -> None:
    facts, routers, subject_id = FLEET_CASES[name]
    (found,) = of_fleet(facts, routers)
    assert (found.kind, found.subject_id) == (name, subject_id)


def test_a_fleet_in_order_has_no_finding() -> None:
    assert of_fleet(FLEET, (replace(ROUTER, versions={TENANT: 7, OTHER: 9}),)) == ()


def test_every_kind_has_a_case() -> None:
    assert {name.partition(",")[0] for name in CASES} | set(FLEET_CASES) == set(KINDS)


# ---- where the line runs ---------------------------------------------------------------------------------------------------


def test_a_rollback_is_not_published_again() -> None:
    """The routers hold what the database has lost: a new version would bring revoked keys back."""
    (found,) = seen(FACTS, replace(ROUTER, refused={TENANT: "rollback"}))
    assert (found.kind, found.repairable) == ("snapshot_refused", False)


def test_a_pool_that_nobody_uses_need_not_be_known() -> None:
    unused = replace(FACTS, endpoints=())
    assert seen(unused, replace(ROUTER, engines={})) == []
    assert [one.kind for one in seen(unused, replace(ROUTER, engines={URL_B: ENGINE}))] == ["replica_unseen"]  # a grantee's endpoint uses it


def test_routers_that_are_behind_say_nothing_of_replicas() -> None:
    late = replace(ROUTER, versions={TENANT: 6}, engines={URL_B: ENGINE})
    assert [one.kind for one in seen(FACTS, late)] == ["router_behind"]


def test_a_paused_replica_may_be_anything() -> None:
    assert seen(replica(state="paused"), replace(ROUTER, engines={URL_B: ENGINE})) == []


@pytest.mark.parametrize("state", ["draining", "paused"])
def test_a_replica_that_people_took_out_of_service_may_be_away(state: str) -> None:
    assert [one.kind for one in seen(FACTS, engine(**AWAY))] == ["replica_unreachable"]
    assert seen(replica(state=state), engine(**AWAY)) == []


def test_a_moment_away_is_watched_where_every_router_misses_it() -> None:
    """Pages show it in red by then. It opens by how long it is away, not by when a run saw it; a router that has not asked it yet says nothing."""
    moment = engine(**{**AWAY, "away_for_s": 5.0})
    (found,) = seen(FACTS, moment, replace(engine(**AWAY), router_id="r2"))
    assert (found.kind, found.lasted_s, found.mark) == ("replica_unreachable", 5.0, "1970-01-01 00:01:00 UTC")
    (step,) = settle({}, [found], 1000.0)
    assert step.after is not None
    assert step.after.state is State.WATCHING
    (later,) = seen(FACTS, engine(**AWAY))
    (step,) = settle({}, [later], 1000.0)
    assert step.after is not None
    assert step.after.state is State.OPEN
    assert seen(FACTS, engine(**{**AWAY, "condition": "unknown"})) == []


def test_a_moment_away_from_one_router_of_two_is_no_finding() -> None:
    assert seen(FACTS, engine(**{**AWAY, "away_for_s": 29.9}), replace(ROUTER, router_id="r2")) == []
    assert [one.kind for one in seen(FACTS, engine(**AWAY), replace(ROUTER, router_id="r2"))] == ["replica_reach_disputed"]


def test_history_is_no_finding_where_no_events_are_declared() -> None:
    assert seen(replica(kv_events=False), engine(ranks=(Rank(0, "history"),))) == []


def test_a_few_blocks_more_or_less_are_the_same_cache() -> None:
    assert seen(replica(capacity_tokens_before=9600)) == []
    assert [one.kind for one in seen(replica(capacity_tokens_before=9400))] == ["capacity_changed"]


def test_an_engine_that_lists_no_models_is_not_accused() -> None:
    assert seen(FACTS, engine(models=frozenset())) == []


def test_alarms_after_a_pass_count_from_the_third() -> None:
    assert seen(replace(FACTS, alarms=(replace(ALARM, isolated=True, count=2),))) == []


def test_of_a_granted_pool_only_ones_own_endpoint_is_spoken_of() -> None:
    """Some engines, or none: no replica, no address, no model but the endpoint's own."""
    granted = replace(FACTS, replicas=(), endpoints=(replace(CHAT, own=False, pool="shared"),))
    (some,) = seen(granted, engine(models=frozenset({"theirs"})))
    assert "not every engine of the granted pool shared" in some.explanation
    word = replace(ENGINE, models=frozenset({"theirs"}))
    (none,) = seen(granted, replace(ROUTER, engines={URL: word, URL_B: word}))
    assert "no engine of the granted pool shared" in none.explanation
    for found in (some, none):
        assert not {"theirs", URL, "10.0.0"} & set(found.explanation.split())
    (alarm,) = seen(replace(granted, alarms=(replace(ALARM, replica="", unaudited=True),)))
    assert "gpu/a" not in alarm.explanation
    assert "the granted pool through chat" in alarm.explanation


# ---- laws ------------------------------------------------------------------------------------------------------------------

words = st.builds(
    EngineWord,
    build=st.sampled_from(["", "b1", "b2"]),
    models=st.sampled_from([frozenset(), frozenset({"m"}), frozenset({"secret-model"})]),
    block_tokens=st.sampled_from([None, 16, 32]),
    capacity_tokens=st.sampled_from([None, 5000, 10_000]),
    ranks=st.lists(st.builds(Rank, st.integers(0, 2), st.sampled_from(["exact", "history", "degraded"]), st.just("gap")), max_size=2).map(tuple),
    trust=st.sampled_from(["", "demote"]),
)
SECRET_URL = "http://10.9.9.9:8000"
mismatches = st.builds(
    Mismatch, st.sampled_from([ENDPOINT, OTHER]), st.sampled_from([A.id, OTHER]), st.just("s"), inexact=st.sampled_from(["", "no_template"])
)
routers = st.lists(
    st.builds(
        RouterWord,
        st.sampled_from(["r1", "r2", "r3"]),
        st.just(0.0),
        state=st.sampled_from(["ready", "stale"]),
        versions=st.dictionaries(st.sampled_from([TENANT, OTHER]), st.integers(5, 8)),
        refused=st.dictionaries(st.sampled_from([TENANT, OTHER]), st.sampled_from(["invalid", "rollback"])),
        engines=st.dictionaries(st.sampled_from([URL, URL_B, SECRET_URL]), words),
        artifacts=st.dictionaries(st.sampled_from([DIGEST, "cd" * 32]), st.sampled_from(["missing", "refused"])),
        mismatches=st.lists(st.builds(Mismatch, st.sampled_from([ENDPOINT, OTHER]), st.sampled_from([A.id, OTHER]), st.just("s")), max_size=3).map(
            tuple
        ),
    ),
    max_size=3,
    unique_by=lambda router: router.router_id,
)
facts_of = st.builds(
    TenantFacts,
    st.just(TENANT),
    st.just("acorn"),
    st.just(7),
    st.sampled_from([None, 6, 7, 8]),
    document=st.booleans(),
    replicas=st.lists(st.sampled_from([A, B]), max_size=2, unique=True).map(tuple),
    endpoints=st.sampled_from([(), (CHAT,), (replace(CHAT, own=False),)]),
    alarms=st.sampled_from([(), (replace(ALARM, unaudited=True),), (replace(ALARM, isolated=True),)]),
)


@given(facts_of, routers, st.randoms())
def test_the_order_of_routers_and_rows_is_irrelevant(facts: TenantFacts, said: Sequence[RouterWord], random: Any) -> None:
    shuffled = list(said)
    random.shuffle(shuffled)
    turned = replace(facts, replicas=facts.replicas[::-1], endpoints=facts.endpoints[::-1])
    found = of_tenant(facts, said)
    assert found == of_tenant(turned, shuffled) == of_tenant(facts, iter(said))
    assert len({one.key for one in found}) == len(found)
    assert of_fleet(FLEET, said) == of_fleet(FLEET, shuffled)


@given(facts_of, routers)
def test_no_finding_names_anothers_object(facts: TenantFacts, said: Sequence[RouterWord]) -> None:
    """Routers speak of every tenant's engines. What is said to one tenant holds no address, model, artifact or tenant of another."""
    for one in of_tenant(facts, said):
        text = " ".join([one.subject_id, one.subject, one.aspect, one.explanation, one.mark])
        for foreign in ("10.9.9.9", "secret-model", "cd" * 32, str(OTHER)):
            assert foreign not in text


@given(facts_of, routers)
def test_what_is_not_mine_changes_nothing_of_mine(facts: TenantFacts, said: Sequence[RouterWord]) -> None:
    """A tenant cannot tell from its findings what routers say of others: taking all of that away changes none."""
    mine = [
        replace(
            router,
            versions={key: value for key, value in router.versions.items() if key == TENANT},
            refused={key: value for key, value in router.refused.items() if key == TENANT},
            engines={url: word for url, word in router.engines.items() if url != SECRET_URL},
            artifacts={key: value for key, value in router.artifacts.items() if key == DIGEST},
            mismatches=tuple(one for one in router.mismatches if one.endpoint_id == ENDPOINT),
        )
        for router in said
    ]
    assert of_tenant(facts, said) == of_tenant(facts, mine)
