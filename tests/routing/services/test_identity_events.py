"""Events that make old blocks unreachable: which ones there are, what they reached, what they are expected to cost."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from namespaces.services import keys
from routing.core.calibration import DEFAULT_FIXED_S, DEFAULT_RATE
from routing.core.record import DecisionRecord
from routing.models import DecisionRow, Endpoint
from routing.services import catalogue, endpoints, identity_events
from routing.services.identity_events import Impact
from tenants.models import AuditEntry, Scope
from tenants.scoping import ScopeError, tenant_scope
from tenants.services import scopes
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, a_model, a_pool, an_endpoint

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def _decision(
    tenant: Made, namespace: str | None, *, before: timedelta = MINUTE, learned: float | None = None, audit: bool = False, **fields: Any
) -> None:
    """A record as ingest stores it: 3000 prompt tokens of which 1000 were cached, first token after 0.53 s, unless told otherwise. ``learned``: the
    replica's prefill rate, as the router had it; ``audit``: it was a probe."""
    given: dict[str, Any] = {"prompt_tokens": 3000, "cached_tokens": 1000, "ttft_s": 0.53, "outcome": "ok", "status": 200, **fields}
    started: datetime = timezone.now() - before
    record = DecisionRecord(
        id=uuid.uuid4(),
        tenant_id=tenant.id,
        started_at=started.timestamp(),
        route="chat",
        router_id="r1",
        config_version=1,
        namespace=namespace,
        prefill_tokens_per_s=learned,
        audit=audit,
        **given,
    )
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
    DecisionRow.objects.bulk_create(
        [DecisionRow(id=record.id, tenant_id=tenant.id, started_at=started, record=msgspec.to_builtins(record), **given)], ignore_conflicts=True
    )
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_app")


def _latest(tenant: Made) -> AuditEntry:
    return identity_events.events(tenant.id).order_by("-created_at")[0]


def _impact(tenant: Made, event: AuditEntry | None = None) -> Impact:
    event = event or _latest(tenant)
    return identity_events.impacts(tenant.id, [event])[event.id]


@pytest.fixture
def endpoint(acorn: Made) -> Endpoint:
    with tenant_scope(acorn.id):
        return an_endpoint(acorn.id, context={"org": "v7"})


def test_every_kind_of_change_is_an_event_and_nothing_else_is(acorn: Made, endpoint: Endpoint) -> None:
    """Each with the components it changed; renaming a scope's key, a policy or a switch is none."""
    with tenant_scope(acorn.id):
        model = endpoint.model
        adapter = catalogue.create_adapter(tenant_id=acorn.id, actor=ACTOR, model_id=model.id, name="lora", revision="r1")
        keys.provision(tenant_id=acorn.id, actor=ACTOR, root=b"r" * 32)
        root = Scope.objects.get(path="")
        before = identity_events.events(acorn.id).count()
        scopes.raise_version(tenant_id=acorn.id, actor=ACTOR, scope_id=root.id, reason="left the company")
        keys.rotate(tenant_id=acorn.id, actor=ACTOR, root=b"r" * 32, from_version=1, reason="leak", now=timezone.now())
        endpoints.rotate_epoch(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, reason="incident")
        catalogue.update_model(tenant_id=acorn.id, actor=ACTOR, model_id=model.id, revision="r2")
        catalogue.update_model(tenant_id=acorn.id, actor=ACTOR, model_id=model.id, tokenizer_revision="t2", chat_template_revision="c2")
        catalogue.update_adapter(tenant_id=acorn.id, actor=ACTOR, adapter_id=adapter.id, revision="r2")
        catalogue.reload_adapter(tenant_id=acorn.id, actor=ACTOR, adapter_id=adapter.id, reason="new files")
        endpoints.update(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, context={"org": "v8"})
        endpoints.update(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, enabled=False)
        catalogue.update_model(tenant_id=acorn.id, actor=ACTOR, model_id=model.id, context_window_tokens=8192)
        found = list(identity_events.events(acorn.id).order_by("created_at"))[before:]
        assert [(event.action, identity_events.components(event)) for event in found] == [
            ("scope.raise", ["scope"]),
            ("tenant_key.rotate", []),
            ("endpoint.rotate_epoch", ["epoch"]),
            ("model.update", ["model"]),
            ("model.update", ["tokenizer", "chat_template"]),
            ("adapter.update", ["adapter"]),
            ("adapter.reload", ["adapter"]),
            ("endpoint.update", ["context"]),
        ]
        assert (found[0].actor_label, found[0].reason) == (ACTOR.label, "left the company")


def test_what_an_epoch_reached(acorn: Made, endpoint: Endpoint) -> None:
    """Distinct namespaces of that endpoint in seven days, computed tokens of the last hour, the default rate while too little was seen."""
    with tenant_scope(acorn.id):
        for namespace in ("ns-1", "ns-1", "ns-2"):
            _decision(acorn, namespace, endpoint_id=endpoint.id)
        _decision(acorn, "ns-3", endpoint_id=endpoint.id, before=timedelta(days=2))
        _decision(acorn, "ns-old", endpoint_id=endpoint.id, before=timedelta(days=8))
        _decision(acorn, "ns-other", endpoint_id=uuid.uuid4())
        _decision(acorn, None, endpoint_id=endpoint.id, outcome="refused")
        _decision(acorn, "ns-probe", endpoint_id=endpoint.id, audit=True)
        endpoints.rotate_epoch(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, reason="incident")
        _decision(acorn, "ns-later", endpoint_id=endpoint.id, before=-MINUTE)
        assert _impact(acorn) == Impact(
            namespaces=3, cold_tokens=6000, cold_s=6000 / DEFAULT_RATE, prefill_tokens_per_s=DEFAULT_RATE, rate_from="default"
        )


def test_the_rate_seen_is_used_once_enough_was_seen(acorn: Made, endpoint: Endpoint) -> None:
    """2000 computed tokens in 0.53 s less the fixed 0.03 s: 4000 tokens/s; small prompts and those without a time teach nothing."""
    with tenant_scope(acorn.id):
        for _ in range(8):
            _decision(acorn, "ns-1", endpoint_id=endpoint.id)
        _decision(acorn, "ns-1", endpoint_id=endpoint.id, prompt_tokens=10, cached_tokens=0, ttft_s=9.0)
        _decision(acorn, "ns-1", endpoint_id=endpoint.id, ttft_s=None)
        _decision(acorn, "ns-1", endpoint_id=endpoint.id, prompt_tokens=None, cached_tokens=None)
        endpoints.rotate_epoch(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, reason="incident")
        impact = _impact(acorn)
    assert (impact.rate_seen, impact.rate_from, round(impact.prefill_tokens_per_s)) == (True, "prompts", 4000)
    assert impact.cold_tokens == 9 * 2000 + 10
    assert impact.cold_s == pytest.approx(impact.cold_tokens / 4000)


def _rate(tenant: Made, endpoint_id: uuid.UUID) -> tuple[str, int]:
    """Of an event that happens now."""
    would = AuditEntry(tenant_id=tenant.id, action="endpoint.rotate_epoch", object_id=endpoint_id, created_at=timezone.now())
    impact = _impact(tenant, would)
    assert impact.cold_s == pytest.approx(impact.cold_tokens / impact.prefill_tokens_per_s)
    return impact.rate_from, round(impact.prefill_tokens_per_s)


def test_without_long_prompts_the_rate_is_what_shorter_ones_show(acorn: Made, endpoint: Endpoint) -> None:
    """Hundreds of prompts of a few hundred tokens are no reason for an assumed rate: 400 tokens in 0.2 s above what a request costs by itself."""
    with tenant_scope(acorn.id):
        for _ in range(7):
            _decision(acorn, "ns-1", endpoint_id=endpoint.id, prompt_tokens=1400, ttft_s=0.3)
        for unknown in ("prompt_tokens", "cached_tokens", "ttft_s"):  # whose engine did not say, or that was not streamed
            for _ in range(8):
                told: dict[str, Any] = {"prompt_tokens": 1400, "ttft_s": 0.01, unknown: None}
                _decision(acorn, "ns-1", endpoint_id=endpoint.id, **told)
        assert _rate(acorn, endpoint.id) == ("default", DEFAULT_RATE)
        _decision(acorn, "ns-1", endpoint_id=endpoint.id, prompt_tokens=1400, ttft_s=0.3)
        assert _rate(acorn, endpoint.id) == ("shorter_prompts", round(400 / (0.3 - DEFAULT_FIXED_S)))
        for _ in range(8):
            _decision(acorn, "ns-1", endpoint_id=endpoint.id, prompt_tokens=1010, ttft_s=0.1)
        assert _rate(acorn, endpoint.id) == ("shorter_prompts", 2000)
        other = uuid.uuid4()
        for _ in range(8):  # where a request costs nearly as much by itself as with a prompt, a quarter of the time is taken for computing
            _decision(acorn, "ns-2", endpoint_id=other, prompt_tokens=1010, ttft_s=0.29)
            _decision(acorn, "ns-2", endpoint_id=other, prompt_tokens=1400, ttft_s=0.3)
        assert _rate(acorn, other) == ("shorter_prompts", round(400 / 0.075))


def test_what_routers_learned_comes_before_shorter_prompts_and_after_long_ones(acorn: Made, endpoint: Endpoint) -> None:
    """A router that has not learned a rate notes the default, which is no measurement."""
    with tenant_scope(acorn.id):
        for _ in range(8):
            _decision(acorn, "ns-1", endpoint_id=endpoint.id, prompt_tokens=1400, ttft_s=0.3, learned=DEFAULT_RATE)
        assert _rate(acorn, endpoint.id)[0] == "shorter_prompts"
        for learned in (4000.0, 6000.0, 5000.0):
            _decision(acorn, "ns-1", endpoint_id=endpoint.id, prompt_tokens=1400, ttft_s=0.3, learned=learned)
        assert _rate(acorn, endpoint.id) == ("routers", 5000)
        for _ in range(8):
            _decision(acorn, "ns-1", endpoint_id=endpoint.id)
        assert _rate(acorn, endpoint.id) == ("prompts", 4000)


def test_a_raised_scope_reaches_it_and_all_below(acorn: Made, endpoint: Endpoint) -> None:
    """Not its siblings, nor endpoints whose identities hold the root's version alone; the root reaches all."""
    with tenant_scope(acorn.id):
        wide = an_endpoint(acorn.id, "wide", pool=a_pool(acorn.id, "second"), model=a_model(acorn.id, "m2"), sharing="tenant")
        made = {path: scopes.create(tenant_id=acorn.id, actor=ACTOR, path=path) for path in ("a", "a/b", "ab")}
        for path, namespace in (("a", "ns-a"), ("a/b", "ns-b"), ("ab", "ns-ab")):
            _decision(acorn, namespace, endpoint_id=endpoint.id, scope_id=made[path].id)
        _decision(acorn, "ns-wide", endpoint_id=wide.id, scope_id=made["a"].id)
        scopes.raise_version(tenant_id=acorn.id, actor=ACTOR, scope_id=made["a"].id, reason="why")
        assert _impact(acorn).namespaces == 2
        scopes.raise_version(tenant_id=acorn.id, actor=ACTOR, scope_id=Scope.objects.get(path="").id, reason="why")
        assert _impact(acorn).namespaces == 4


def test_a_model_reaches_its_endpoints_and_a_key_everything(acorn: Made, endpoint: Endpoint) -> None:
    with tenant_scope(acorn.id):
        other = an_endpoint(acorn.id, "other", pool=a_pool(acorn.id, "second"), model=a_model(acorn.id, "m2"))
        _decision(acorn, "ns-1", endpoint_id=endpoint.id)
        _decision(acorn, "ns-2", endpoint_id=other.id)
        catalogue.update_model(tenant_id=acorn.id, actor=ACTOR, model_id=other.model_id, revision="r2")
        assert _impact(acorn).namespaces == 1
        keys.provision(tenant_id=acorn.id, actor=ACTOR, root=b"r" * 32)
        keys.rotate(tenant_id=acorn.id, actor=ACTOR, root=b"r" * 32, from_version=1, reason="leak", now=timezone.now())
        assert _impact(acorn).namespaces == 2


def test_a_page_of_events_takes_the_same_queries_as_one(acorn: Made, endpoint: Endpoint, django_assert_num_queries: Any) -> None:
    with tenant_scope(acorn.id):
        for _ in range(5):
            endpoints.rotate_epoch(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, reason="again")
        found = list(identity_events.events(acorn.id).order_by("-created_at"))
        for some in (found[:1], found):
            with django_assert_num_queries(8):  # the scope, endpoints, scopes; a savepoint around the timeout and the count
                assert len(identity_events.impacts(acorn.id, some)) == len(some)
        assert identity_events.impacts(acorn.id, []) == {}


def test_counting_that_takes_too_long_is_left_out(acorn: Made, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is shown without; the transaction goes on, without the time limit."""
    monkeypatch.setattr(identity_events, "_COUNT", "SELECT pg_sleep(30), %s::text, %s, %s, %s, %s, %s, %s, %s")
    monkeypatch.setattr(identity_events, "COUNT_TIMEOUT_MS", 20)
    with tenant_scope(acorn.id):
        endpoints.rotate_epoch(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, reason="incident")
        assert identity_events.impacts(acorn.id, [_latest(acorn)]) == {}
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            assert cursor.fetchone() == ("0",)


def test_another_tenants_events_and_decisions_do_not_count(acorn: Made, birch: Made, endpoint: Endpoint) -> None:
    with tenant_scope(birch.id):
        _decision(birch, "ns-theirs", endpoint_id=endpoint.id)
    with tenant_scope(acorn.id):
        endpoints.rotate_epoch(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, reason="incident")
        event = _latest(acorn)
        assert _impact(acorn).namespaces == 0
    with tenant_scope(birch.id):
        assert list(identity_events.events(acorn.id)) == []
        with pytest.raises(ScopeError):
            identity_events.impacts(acorn.id, [event])
