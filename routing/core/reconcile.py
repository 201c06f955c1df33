"""Holds what routers say against what the database says: views in, findings out. Pure, and blind to the order in which routers were read.

:func:`of_tenant` is given one tenant's own objects and speaks of nothing else; of a granted pool it knows whether engines serve the tenant's
endpoint, and names none. :func:`of_fleet` is for the platform. All times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from routing.core import glossary
from routing.core.findings import Finding
from routing.core.reach import UNKNOWN, UNREACHABLE_AFTER_S
from routing.core.reconcile_facts import EndpointFact, EngineWord, FleetFacts, Mismatch, ReplicaFact, RouterWord, TenantFacts

CAPACITY_CHANGED = 0.05  # share; how many blocks fit differs a little between two starts of one engine
CAPACITY_MIXED = 0.20
ALARMS_CONTRADICT = 3
KNOWN_STATES = ("exact", "warming")  # of residency: nothing to report
BLOCK_SIZE, PARITY = "block_size", "parity"  # reasons of residency that are findings of their own


# ---- one tenant ------------------------------------------------------------------------------------------------------------


def of_tenant(facts: TenantFacts, routers: Iterable[RouterWord]) -> tuple[Finding, ...]:
    """Everything about one tenant's own objects, sorted."""
    words = sorted(routers, key=lambda router: router.router_id)
    labels = {replica.id: replica.label for replica in facts.replicas}
    found: list[Finding] = [*_snapshot(facts), *_assignments(facts), *_alarms(facts)]
    for router in words:
        found += _applied(facts, router)
    for replica in facts.replicas:
        found += _replica(facts, replica, words)
    for endpoint in facts.endpoints:
        found += _served(facts, endpoint, words)
        found += of_tokens(endpoint, labels, words)
    found += _pools(facts, words)
    return tuple(sorted(found))


def _snapshot(facts: TenantFacts) -> Iterator[Finding]:
    held, wanted = facts.published_version, facts.config_version
    about = ("tenant", str(facts.tenant_id))
    if held is not None and held > wanted:
        said = (
            f"Routers were given version {held}, and the database is at {wanted}: it was probably restored from a backup. Routers refuse what is "
            "older than what they run. Check what was lost (revoked keys above all), then make changes until the version is passed."
        )
        yield Finding("snapshot_ahead", *about, subject=facts.slug, explanation=said)
    elif held is None or held < wanted or not facts.document:
        there = "nothing" if held is None or not facts.document else f"version {held}"
        said = f"The configuration is at version {wanted} and Valkey holds {there}, so routers cannot have it."
        yield Finding("snapshot_unpublished", *about, subject=facts.slug, explanation=said, mark=str(held))


def _applied(facts: TenantFacts, router: RouterWord) -> Iterator[Finding]:
    about = ("router", router.router_id)
    refused, version = facts.tenant_id in router.refused, router.versions.get(facts.tenant_id)
    if refused:
        reason = router.refused[facts.tenant_id]
        runs = "nothing" if version is None else f"version {version}"
        why = "it is older than what it runs" if reason == "rollback" else "it does not open, or holds what this router does not know"
        said = f"Router {router.router_id} refused the newest document ({why}) and goes on with {runs}."
        yield Finding("snapshot_refused", *about, subject=router.router_id, explanation=said, mark=reason, repairable=reason != "rollback")
    elif (version or 0) < min(facts.config_version, facts.published_version or 0):
        runs = "does not know this tenant yet" if version is None else f"runs version {version}"
        said = f"Router {router.router_id} {runs}; version {facts.published_version} is published."
        yield Finding("router_behind", *about, subject=router.router_id, explanation=said, mark=str(version))


def _assignments(facts: TenantFacts) -> Iterator[Finding]:
    for replica in facts.replicas:
        assignment, about = replica.assignment, ("replica", str(replica.id))
        if assignment is None:
            continue
        if assignment.void:
            said = f"{replica.label} serves every namespace, and one is still noted as its only one. The note has no effect and is taken away."
            yield Finding("assignment_void", *about, subject=replica.label, explanation=said)
        elif assignment.dead:
            said = (
                f"{replica.label} serves one namespace only, and that one cannot come again: {assignment.dead}. Restart the engine: with its cache "
                "empty, the next namespace that asks is given the replica. An audit that passes frees it too."
            )
            yield Finding("assignment_dead", *about, subject=replica.label, explanation=said)
        elif assignment.idle_days is not None:
            said = f"{replica.label} serves one namespace only, and nobody has used it for {assignment.idle_days} days. A restart frees the replica."
            yield Finding("assignment_idle", *about, subject=replica.label, explanation=said)


def _alarms(facts: TenantFacts) -> Iterator[Finding]:
    for alarm in facts.alarms:
        # A replica of the platform's is told apart by what the tenant knows: its own endpoint. The id is an aspect for the repair alone.
        about = ("endpoint", str(alarm.endpoint_id), str(alarm.replica_id))
        where = f"{alarm.replica} through {alarm.endpoint}" if alarm.replica else f"the granted pool through {alarm.endpoint}"
        many = "1 request" if alarm.count == 1 else f"{alarm.count} requests"
        if alarm.unaudited:
            said = f"{many} at {where} reported more cached tokens than the namespace could own, and no audit was ordered since."
            yield Finding("alarm_unaudited", *about, subject=alarm.endpoint, explanation=said)
        elif alarm.isolated and alarm.count >= ALARMS_CONTRADICT:
            said = (
                f"{many} at {where} reported more cached tokens than the namespace could own although audits passed. Either the engine's count is "
                "wrong, or two namespaces share what no audit tries: look at those decisions."
            )
            yield Finding("alarm_contradicted", *about, subject=alarm.endpoint, explanation=said)


# ---- engines ---------------------------------------------------------------------------------------------------------------


def _said(words: Sequence[RouterWord], url: str) -> list[tuple[str, EngineWord]]:
    return [(router.router_id, router.engines[url]) for router in words if url in router.engines]


def _replica(facts: TenantFacts, replica: ReplicaFact, words: Sequence[RouterWord]) -> Iterator[Finding]:
    """What is to be said of one own replica."""
    about, label = ("replica", str(replica.id)), replica.label
    said = _said(words, replica.url)
    if replica.unaudited_build:
        text = f"{label} answers with another build than the one that audits proved, and no audit has tried it yet."
        yield Finding("build_unaudited", *about, subject=label, explanation=text, mark=replica.build)
    if not said:
        current = [router for router in words if router.versions.get(facts.tenant_id, 0) >= facts.config_version]
        if current and replica.state != "paused" and _is_used(facts, replica.pool_id, current):
            who = "the only router" if len(current) == 1 else f"none of {len(current)} routers"
            text = f"{label} is registered and in use, and {who} with this configuration {'does not know' if len(current) == 1 else 'knows'} it."
            yield Finding("replica_unseen", *about, subject=label, explanation=text)
        return
    yield from _reach(replica, said)
    yield from _build(replica, said)
    yield from _block_size(replica, said)
    sizes = _sizes(words, replica.url)
    before = replica.capacity_tokens_before
    if sizes and before and abs(max(sizes) - before) > CAPACITY_CHANGED * before:
        text = f"The cache of {label} held {before} tokens and holds {max(sizes)} now."
        yield Finding("capacity_changed", *about, subject=label, explanation=text)
    yield from _residency(replica, said)
    causes = sorted({word.trust for _, word in said if word.trust})
    if causes:
        text = f"What {label} reused is not what was predicted of it: {'; '.join(causes)}. Its promises are discounted meanwhile."
        yield Finding("reuse_contradicted", *about, subject=label, explanation=text)


def _reach(replica: ReplicaFact, said: Sequence[tuple[str, EngineWord]]) -> Iterator[Finding]:
    """Of replicas in service alone: one that is drained or paused may be stopped. Where every router misses it, that is said at once and watched."""
    known = [(router_id, word) for router_id, word in said if word.condition not in UNKNOWN]
    away = [(router_id, word) for router_id, word in known if word.away_since_s is not None]
    if replica.state != "active" or not away:
        return
    if len(away) < len(known):  # and one that has missed it for moments only may be the first to see what the others see next
        away = [(router_id, word) for router_id, word in away if word.away_for_s >= UNREACHABLE_AFTER_S]
        if not away:
            return
    about, label = ("replica", str(replica.id)), replica.label
    since = _utc(min(word.away_since_s for _, word in away if word.away_since_s is not None))
    why = "; ".join(sorted({glossary.label("health", word.condition) for _, word in away}))
    if len(away) == len(known):
        text = f"No router reaches {label} since {since} ({why}). No request is sent there, and nothing is known of what it holds until it answers."
        lasted_s = min(word.away_for_s for _, word in away)
        yield Finding("replica_unreachable", *about, subject=label, explanation=text, mark=since, lasted_s=lasted_s)
    else:
        where = ", ".join(router_id for router_id, _ in away[:8])
        text = f"{label} cannot be reached from {where} since {since} ({why}), and from {len(known) - len(away)} of {len(known)} routers it can."
        yield Finding("replica_reach_disputed", *about, subject=label, explanation=text)


def _is_used(facts: TenantFacts, pool_id: UUID, words: Sequence[RouterWord]) -> bool:
    """Whether routers should know the pool's engines: an endpoint sits on it, or they do know one (a granted pool's endpoints are others')."""
    if any(endpoint.pool_id == pool_id for endpoint in facts.endpoints):
        return True
    return any(one.url in router.engines for one in facts.replicas if one.pool_id == pool_id for router in words)


def _build(replica: ReplicaFact, said: Sequence[tuple[str, EngineWord]]) -> Iterator[Finding]:
    about, label = ("replica", str(replica.id)), replica.label
    builds = sorted({word.build for _, word in said if word.build})
    if len(builds) > 1:
        text = f"Routers see {len(builds)} builds at the address of {label}: several engines answer there, or it is being replaced."
        yield Finding("build_disputed", *about, subject=label, explanation=text)
    elif builds and replica.build and builds[0] != replica.build:
        text = f"Routers see another build of {label} than was noted. It is noted now, and the engine is unverified until an audit passes."
        yield Finding("build_unnoticed", *about, subject=label, explanation=text, mark=builds[0])


def _block_size(replica: ReplicaFact, said: Sequence[tuple[str, EngineWord]]) -> Iterator[Finding]:
    about, label = ("replica", str(replica.id)), replica.label
    sizes = sorted({word.block_tokens for _, word in said if word.block_tokens})
    if len(sizes) > 1:
        text = f"Routers are told {' and '.join(str(size) for size in sizes)} tokens for a block of {label}: several engines answer at its address."
        yield Finding("block_size_disputed", *about, "metrics", subject=label, explanation=text)
    if any(rank.reason == BLOCK_SIZE for _, word in said for rank in word.ranks):
        text = f"The events of {label} come in blocks of another size than its metrics page says, so routers do not use them."
        yield Finding("block_size_disputed", *about, "events", subject=label, explanation=text)
    before = replica.block_tokens_before
    if len(sizes) == 1 and before and sizes[0] != before:
        text = f"The blocks of {label} held {before} tokens and hold {sizes[0]} now: nothing that was cached before is found again."
        yield Finding("block_size_changed", *about, subject=label, explanation=text)


def _residency(replica: ReplicaFact, said: Sequence[tuple[str, EngineWord]]) -> Iterator[Finding]:
    """Only where events are declared: without them, history is all that there is."""
    if not replica.kv_events or all(word.away_since_s is not None for _, word in said):
        return  # of an engine that is away no events can come: that it is away is the finding
    bad = [
        (router_id, rank)
        for router_id, word in said
        for rank in word.ranks
        if rank.state not in KNOWN_STATES and rank.reason not in (BLOCK_SIZE, PARITY)
    ]
    if not bad:
        return
    parts = []
    for router_id, rank in sorted(bad, key=lambda pair: (pair[0], pair[1].rank, pair[1].state)):
        why = f", {glossary.label('residency_reason', rank.reason)}" if rank.reason else ""
        parts.append(f"{router_id}{f' rank {rank.rank}' if rank.rank else ''}: {rank.state}{why}")
    since = min((rank.since_s for _, rank in bad if rank.since_s), default=None)
    lasting = f", since {_utc(since)}" if since else ""
    text = f"KV events are declared for {replica.label}, and routers cannot rely on them{lasting}: {'; '.join(parts[:8])}."
    yield Finding("residency_degraded", "replica", str(replica.id), subject=replica.label, explanation=text)


def _utc(seconds: float) -> str:
    """A moment as people read it, or nothing where it is none."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "long ago"


def _sizes(words: Sequence[RouterWord], url: str) -> set[int]:
    return {word.capacity_tokens for _, word in _said(words, url) if word.capacity_tokens}


def _served(facts: TenantFacts, endpoint: EndpointFact, words: Sequence[RouterWord]) -> Iterator[Finding]:
    """Engines that answer, and list their models, and not this one. Of a granted pool only whether there is one."""
    missing, named = [], {replica.url: replica.label for replica in facts.replicas if replica.pool_id == endpoint.pool_id}
    heard = 0
    for url in sorted(set(endpoint.urls)):
        lists = [word.models for _, word in _said(words, url) if word.models]
        heard += bool(lists)
        if lists and not any(endpoint.served_model in models for models in lists):
            missing.append(named.get(url, ""))
    if not missing:
        return
    about, wants = ("endpoint", str(endpoint.id)), f"{endpoint.name} asks for the model {endpoint.served_model}, which "
    if endpoint.own:
        text = f"{wants}{', '.join(sorted(missing)[:8])} {'does' if len(missing) == 1 else 'do'} not serve. Was it replaced by another model?"
    else:
        text = f"{wants}{'no engine' if len(missing) == heard else 'not every engine'} of the granted pool {endpoint.pool} serves."
    yield Finding("model_not_served", *about, subject=endpoint.name, explanation=text)


def of_tokens(endpoint: EndpointFact, labels: Mapping[UUID, str], words: Sequence[RouterWord]) -> tuple[Finding, ...]:
    """What keeps prompts of one endpoint from having the engine's tokens, as routers say now. ``labels``: of the tenant's own replicas, which alone
    are named."""
    return (*_artifacts(endpoint, words), *_parity(endpoint, labels, words))


def _artifacts(endpoint: EndpointFact, words: Sequence[RouterWord]) -> Iterator[Finding]:
    for digest, what in endpoint.artifacts:
        without = [(router.router_id, router.artifacts[digest]) for router in words if digest in router.artifacts]
        if without:
            where = ", ".join(f"{router_id} ({why or 'waiting'})" for router_id, why in without[:8])
            text = f"The {what} of {endpoint.name} is not in use at {where}: prompts are matched by history there, not by tokens."
            yield Finding("artifact_missing", "endpoint", str(endpoint.id), digest, subject=endpoint.name, explanation=text)


def _parity(endpoint: EndpointFact, labels: Mapping[UUID, str], words: Sequence[RouterWord]) -> Iterator[Finding]:
    told = sorted({one for router in words for one in router.mismatches if one.endpoint_id == endpoint.id})
    if lacking := [one for one in told if one.inexact]:
        text = (
            f"A sample prompt of {endpoint.name} ({lacking[0].sample}) has tokens at {_where(endpoint, labels, lacking)} and none here "
            f"({glossary.label('inexact', lacking[0].inexact)}). Prompts like it are matched by history."
        )
        yield Finding("parity_inexact", "endpoint", str(endpoint.id), subject=endpoint.name, explanation=text, mark=lacking[0].inexact)
    found = [one for one in told if not one.inexact]
    if not found:
        return
    where = _where(endpoint, labels, found)
    text = (
        f"A sample prompt of {endpoint.name} gives other tokens at {where} than here ({found[0].sample}, from token {found[0].position} on): the "
        "engine has another tokenizer or chat template than was declared. The endpoint is matched by history until they agree."
    )
    yield Finding("parity_broken", "endpoint", str(endpoint.id), subject=endpoint.name, explanation=text)


def _where(endpoint: EndpointFact, labels: Mapping[UUID, str], found: Sequence[Mismatch]) -> str:
    return ", ".join(sorted({labels.get(one.replica_id, f"an engine of {endpoint.pool}") for one in found})[:8])


def _pools(facts: TenantFacts, words: Sequence[RouterWord]) -> Iterator[Finding]:
    pools: dict[UUID, list[ReplicaFact]] = {}
    for replica in facts.replicas:
        if replica.state != "paused":
            pools.setdefault(replica.pool_id, []).append(replica)
    for pool_id, replicas in pools.items():
        about, name = ("pool", str(pool_id)), replicas[0].pool
        told = [{word.block_tokens for _, word in _said(words, one.url) if word.block_tokens} for one in replicas]
        blocks = sorted({size for sizes in told if len(sizes) == 1 for size in sizes})  # disputed ones are a finding of their own
        if len(blocks) > 1:
            text = f"Blocks in {name} hold {', '.join(str(size) for size in blocks)} tokens, so every prompt is hashed once for each size."
            yield Finding("block_size_mixed", *about, subject=name, explanation=text)
        sizes = [max(found) for one in replicas if (found := _sizes(words, one.url))]
        if sizes and min(sizes) < (1 - CAPACITY_MIXED) * max(sizes):
            text = f"Caches in {name} hold from {min(sizes)} to {max(sizes)} tokens; the smallest forgets first."
            yield Finding("capacity_mixed", *about, subject=name, explanation=text)


# ---- the fleet -------------------------------------------------------------------------------------------------------------


def of_fleet(facts: FleetFacts, routers: Iterable[RouterWord]) -> tuple[Finding, ...]:
    """What is nobody's own: routers, and what they know that the database does not. For the platform, sorted."""
    words = sorted(routers, key=lambda router: router.router_id)
    found: list[Finding] = []
    if not words:
        found.append(Finding("no_router", "fleet", "routers", subject="routers", explanation="No router reports: none runs, or none reaches Valkey."))
    heard = {router.router_id for router in words}
    for router_id in sorted(facts.routers_before.keys() - heard):
        text = (
            f"Router {router_id} reported before and does not now: it was stopped, or has lost Valkey. If it is gone for good, this ends in an hour."
        )
        found.append(Finding("router_silent", "router", router_id, subject=router_id, explanation=text))
    for router in words:
        if router.state in ("stale", "expired"):
            text = f"Router {router.router_id} says {router.state}: it has had no word from Valkey for too long, and serves what it last knew."
            found.append(Finding("router_out_of_contact", "router", router.router_id, subject=router.router_id, explanation=text))
    found += _ghosts(facts, words)
    return tuple(sorted(found))


def _ghosts(facts: FleetFacts, words: Sequence[RouterWord]) -> Iterator[Finding]:
    for url in sorted({url for router in words for url in router.engines} - facts.urls):
        knowing = ", ".join([router.router_id for router in words if url in router.engines][:8])
        text = f"{knowing} still know an engine at {url}, and no pool has it: an older configuration is in force there, or a request still runs."
        yield Finding("ghost_engine", "engine", url, subject=url, explanation=text)
    for tenant_id in sorted({tenant_id for router in words for tenant_id in router.versions} - facts.tenants, key=str):
        text = f"Routers serve a tenant {tenant_id} that is in no database: Valkey, or a router's state, is another installation's."
        yield Finding("ghost_tenant", "tenant", str(tenant_id), subject=str(tenant_id), explanation=text)
    for tenant_id, version in sorted(facts.deleted.items(), key=lambda item: str(item[0])):
        serving = [router.router_id for router in words if 0 < router.versions.get(tenant_id, 0) < version]
        if serving:
            text = f"{', '.join(serving[:8])} still serve tenant {tenant_id}, which was deleted: its keys open there until the tombstone arrives."
            yield Finding("deleted_tenant_served", "tenant", str(tenant_id), subject=str(tenant_id), explanation=text)
