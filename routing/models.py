"""WHERE: models, artifacts, pools, replicas, endpoints, policies, and the decisions that routers took."""

from __future__ import annotations

from typing import get_args

from django.db import models

from namespaces.audit.states import State
from routing.alert_models import Alert as Alert  # noqa: PLC0414 - read from here by everybody
from routing.alert_models import SloMinute as SloMinute  # noqa: PLC0414 - read from here by everybody
from routing.alert_models import Webhook as Webhook  # noqa: PLC0414 - read from here by everybody
from routing.alert_models import WebhookDelivery as WebhookDelivery  # noqa: PLC0414 - read from here by everybody
from routing.capture_models import CaptureAccount as CaptureAccount  # noqa: PLC0414 - read from here by everybody
from routing.capture_models import CapturedRequest as CapturedRequest  # noqa: PLC0414 - read from here by everybody
from routing.capture_models import TraceCapture as TraceCapture  # noqa: PLC0414 - read from here by everybody
from routing.check_models import ReplicaCheck as ReplicaCheck  # noqa: PLC0414 - read from here by everybody
from routing.core.findings import SEVERITIES
from routing.core.findings import State as FindingState
from routing.core.snapshot import EngineFamily, IsolationMode, ReplicaRole, ReplicaState, SharingLevel
from routing.quota_models import Quota as Quota  # noqa: PLC0414 - read from here by everybody
from routing.record_models import DecisionRow as DecisionRow  # noqa: PLC0414 - read from here by everybody
from routing.record_models import RecordAccount as RecordAccount  # noqa: PLC0414 - read from here by everybody
from routing.record_models import RecordSettings as RecordSettings  # noqa: PLC0414 - read from here by everybody
from routing.record_models import ReplicaStateRow as ReplicaStateRow  # noqa: PLC0414 - read from here by everybody
from routing.record_models import RollupRow as RollupRow  # noqa: PLC0414 - read from here by everybody
from routing.record_models import UsageRow as UsageRow  # noqa: PLC0414 - read from here by everybody
from routing.trace_job_models import TraceFile as TraceFile  # noqa: PLC0414 - read from here by everybody
from routing.trace_job_models import TraceJob as TraceJob  # noqa: PLC0414 - read from here by everybody
from tenants.models import TenantRow


def _choices(literal: object) -> list[tuple[str, str]]:
    return [(value, value) for value in get_args(literal)]


def _reference(to: str, **options: object) -> models.ForeignKey:  # type: ignore[type-arg]  # the target is named by string
    """A reference between tenant rows: the constraint is a composite foreign key in the migration, never Django's own."""
    return models.ForeignKey(to, on_delete=models.PROTECT, related_name="+", db_constraint=False, **options)  # type: ignore[arg-type]  # options pass through


class Artifact(TenantRow):
    """A tokenizer, chat template or other file that decides tokens, held by SHA-256. Up to 64 MiB."""

    kind = models.CharField(max_length=16, choices=[("tokenizer", "tokenizer"), ("chat_template", "chat_template")])
    name = models.CharField(max_length=200)
    digest = models.BinaryField(max_length=32)
    size_bytes = models.IntegerField()
    content = models.BinaryField()

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "kind", "digest"], name="artifact_digest_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class ModelSpec(TenantRow):
    """A model as declared: weights revision and everything beside the weights that decides what a cached block means."""

    name = models.CharField(max_length=200)
    revision = models.CharField(max_length=200)
    quantisation = models.CharField(max_length=64, null=True, blank=True)
    kv_dtype = models.CharField(max_length=64, null=True, blank=True)
    tokenizer_digest = models.BinaryField(max_length=32, null=True, blank=True)
    tokenizer_revision = models.CharField(max_length=200, null=True, blank=True)
    chat_template_digest = models.BinaryField(max_length=32, null=True, blank=True)
    chat_template_revision = models.CharField(max_length=200, null=True, blank=True)
    multimodal_processor = models.CharField(max_length=200, null=True, blank=True)
    context_window_tokens = models.IntegerField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "name"], name="model_name_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


class Adapter(TenantRow):
    """A LoRA adapter of a model. ``generation`` rises when it is reloaded under the same name."""

    model = _reference("routing.ModelSpec")
    name = models.CharField(max_length=200)
    revision = models.CharField(max_length=200)
    generation = models.IntegerField(default=1)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "model", "name"], name="adapter_name_per_model"),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


class Pool(TenantRow):
    """A set of replicas, owned by the row's tenant; the platform's tenant owns platform pools."""

    name = models.CharField(max_length=100)
    isolation = models.CharField(max_length=16, choices=_choices(IsolationMode), default="audited")

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "name"], name="pool_name_per_tenant"),
        ]

    def __str__(self) -> str:
        return self.name


class PoolGrant(TenantRow):
    """A tenant's right to use a pool. Every pool has one for its owner; the platform grants its pools to named tenants. Endpoints sit on grants."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+")  # plain on purpose: a grant is what crosses tenants
    weight = models.FloatField(default=1.0)  # of the tenant among those that share the pool; set by the platform alone

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.CheckConstraint(condition=models.Q(weight__gt=0), name="pool_grant_weight_is_positive"),
            models.UniqueConstraint(fields=["tenant", "pool"], name="pool_grant_once"),
        ]

    def __str__(self) -> str:
        return str(self.pool_id)


class Replica(TenantRow):
    """One engine of a pool. Its address is checked here at registration and again by the router at every connect."""

    pool = _reference("routing.Pool")
    name = models.CharField(max_length=100)
    url = models.CharField(max_length=500)  # normalised
    engine = models.CharField(max_length=16, choices=_choices(EngineFamily), default="vllm")
    state = models.CharField(max_length=16, choices=_choices(ReplicaState), default="active")
    role = models.CharField(max_length=16, choices=_choices(ReplicaRole), default="both")
    max_concurrency = models.IntegerField(null=True, blank=True)  # requests in flight that routers give it at most
    credential = models.BinaryField(null=True, blank=True)  # sealed to the routers; nobody here can open it
    credential_tag = models.BinaryField(max_length=16, null=True, blank=True)  # keyed digest of it: tells "the same again", see services.replicas
    kv_events = models.JSONField(null=True, blank=True)  # {endpoint, replay, topic}
    dedicated_namespace = models.CharField(max_length=64, null=True, blank=True)
    # Isolation belongs to the physical engine: all rows of one address change together, see services.isolation.
    isolation_state = models.CharField(max_length=16, choices=[(state.value, state.value) for state in State], default="unverified")
    isolation_since = models.DateTimeField(null=True, blank=True)
    isolation_reason = models.CharField(max_length=300, blank=True, default="")
    isolation_verified_at = models.DateTimeField(null=True, blank=True)  # the last clean audit
    isolation_repaired_at = models.DateTimeField(null=True, blank=True)  # since it was quarantined
    isolation_clean_at = models.DateTimeField(null=True, blank=True)  # the first clean audit after the repair
    build = models.CharField(max_length=64, blank=True, default="")  # digest of what the engine says of itself, as last seen by a router
    engine_started_at = models.FloatField(null=True, blank=True)  # unix s; another value is another generation of the cache
    audit_at = models.DateTimeField(null=True, blank=True)  # when the last audit began
    audit_busy_until = models.DateTimeField(null=True, blank=True)  # one audit at a time; the bound outlives a dead worker
    audit_day = models.DateField(null=True, blank=True)  # UTC
    audit_tokens = models.BigIntegerField(default=0)  # spent on that day

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "pool", "name"], name="replica_name_per_pool"),
            models.CheckConstraint(condition=models.Q(max_concurrency__range=(1, 100_000)), name="replica_max_concurrency_in_range"),
        ]
        indexes = [models.Index(fields=["url"], name="replica_by_url")]

    def __str__(self) -> str:
        return self.name


class Policy(TenantRow):
    """A named routing or SLO policy; its documents are the versions."""

    kind = models.CharField(max_length=16, choices=[("routing", "routing"), ("slo", "slo")])
    name = models.CharField(max_length=100)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "kind", "name"], name="policy_name_per_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class PolicyVersion(TenantRow):
    """One document of a policy. Append-only; it was compiled with the router's own code before it was stored."""

    policy = _reference("routing.Policy")
    version = models.IntegerField()
    spec = models.JSONField()
    created_by = models.CharField(max_length=254, blank=True, default="")

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "policy", "version"], name="policy_version_unique"),
        ]

    def __str__(self) -> str:
        return f"v{self.version}"


class Endpoint(TenantRow):
    """A model name that a tenant's applications send, where it is served and under which identity."""

    name = models.CharField(max_length=200)
    grant = _reference("routing.PoolGrant")
    model = _reference("routing.ModelSpec")
    adapter = _reference("routing.Adapter", null=True, blank=True)
    engine = models.CharField(max_length=16, choices=_choices(EngineFamily), default="vllm")
    served_model = models.CharField(max_length=200)
    context = models.JSONField(default=dict, blank=True)  # name -> version
    request_context = models.JSONField(default=list, blank=True)  # names a request may version
    sharing = models.CharField(max_length=16, choices=_choices(SharingLevel), default="scope")
    routing_policy = _reference("routing.PolicyVersion")
    slo_policy = _reference("routing.PolicyVersion", null=True, blank=True)
    candidate_policy = _reference("routing.PolicyVersion", null=True, blank=True)  # on trial beside routing_policy
    canary_share = models.FloatField(default=0.0)  # of the prompts that the candidate places; 0: it decides in the shadow only
    trial_since = models.DateTimeField(null=True, blank=True)  # when this pair of policies began to run side by side
    previous_policy = _reference("routing.PolicyVersion", null=True, blank=True)  # what a roll-back returns to; never beside a candidate
    epoch = models.IntegerField(default=1)
    data_class = models.CharField(max_length=64, null=True, blank=True)
    own_cache = models.BooleanField(default=False)
    client_subdivision = models.BooleanField(default=False)
    enabled = models.BooleanField(default=True)
    explain_until = models.DateTimeField(null=True, blank=True)  # until then records hold all candidates

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "name"], name="endpoint_name_per_tenant"),
            models.CheckConstraint(condition=models.Q(canary_share__gte=0.0, canary_share__lte=1.0), name="endpoint_canary_share_is_a_share"),
            models.CheckConstraint(condition=models.Q(candidate_policy=None) | models.Q(previous_policy=None), name="endpoint_one_way_back"),
        ]

    def __str__(self) -> str:
        return self.name


class AuditRun(TenantRow):
    """One isolation audit of one replica through one endpoint of the tenant, from its order to its signed evidence.

    Ids and names are kept as they were and refer to nothing: evidence outlives what it is about, and a granted pool's replica is the platform's row.
    """

    state = models.CharField(max_length=16, choices=[(one, one) for one in ("queued", "running", "finished", "refused")], default="queued")
    trigger = models.CharField(max_length=16)  # demand, first, build, restart, epoch, daily, alarm, retry
    requested_by = models.CharField(max_length=254, blank=True, default="")
    sizes = models.JSONField(default=dict)  # sample sizes, where they differ from the usual
    endpoint_id = models.UUIDField()
    endpoint_name = models.CharField(max_length=200)
    pool_id = models.UUIDField()
    pool_name = models.CharField(max_length=100)
    pool_owner_id = models.UUIDField()
    replica_id = models.UUIDField()
    replica_name = models.CharField(max_length=100, blank=True, default="")  # empty where the pool is the platform's
    epochs = models.CharField(max_length=40, blank=True, default="")  # the tenant's and the endpoint's, when it ran
    build = models.CharField(max_length=64, blank=True, default="")
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=16, blank=True, default="")
    reason = models.CharField(max_length=300, blank=True, default="")
    probes = models.IntegerField(default=0)
    negative_probes = models.IntegerField(default=0)
    failure_bound_ppm = models.IntegerField(null=True, blank=True)  # upper 95 % bound of the failure rate, parts per million
    tokens_spent = models.BigIntegerField(default=0)  # prompt tokens that the engine had to compute
    cases = models.JSONField(default=list)
    evidence = models.JSONField(null=True, blank=True)
    signature = models.BinaryField(max_length=64, null=True, blank=True)
    evidence_key = models.BinaryField(max_length=32, null=True, blank=True)  # public

    class Meta(TenantRow.Meta):
        constraints = [*TenantRow.Meta.constraints]
        indexes = [
            models.Index(fields=["tenant", "-created_at"], name="audit_run_by_time"),
            models.Index(fields=["tenant", "replica_id", "-created_at"], name="audit_run_by_replica"),
        ]

    def __str__(self) -> str:
        return f"{self.trigger} {self.outcome or self.state}"


class ReconciliationRun(TenantRow):
    """One comparison of what routers, engines and the database say of the tenant. Runs that found nothing new are one row, counted by ``repeats``."""

    state = models.CharField(max_length=16, choices=[(one, one) for one in ("queued", "running", "finished", "broken")], default="queued")
    trigger = models.CharField(max_length=16)  # beat, demand, command
    requested_by = models.CharField(max_length=254, blank=True, default="")
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    took_s = models.FloatField(null=True, blank=True)
    repeats = models.IntegerField(default=1)
    routers = models.IntegerField(null=True, blank=True)  # that were heard; None: Valkey did not answer
    watching = models.IntegerField(default=0)
    open = models.IntegerField(default=0)
    opened = models.IntegerField(default=0)  # by this run, as the two below
    resolved = models.IntegerField(default=0)
    repairs = models.IntegerField(default=0)
    dropped = models.IntegerField(default=0)  # beyond the bounds of one run
    reason = models.CharField(max_length=300, blank=True, default="")
    observed = models.JSONField(default=dict, blank=True)  # what the next run compares with; kept of the last one alone

    class Meta(TenantRow.Meta):
        constraints = [*TenantRow.Meta.constraints]
        indexes = [models.Index(fields=["tenant", "-created_at"], name="reconciliation_run_by_time")]

    def __str__(self) -> str:
        return f"{self.trigger} {self.state}"


class ReconciliationFinding(TenantRow):
    """One contradiction, from when it was first seen until it was seen no more. The subject is text: findings outlive what they are about."""

    kind = models.CharField(max_length=40)
    severity = models.CharField(max_length=16, choices=[(one, one) for one in SEVERITIES])
    state = models.CharField(max_length=16, choices=[(one.value, one.value) for one in FindingState])
    subject_kind = models.CharField(max_length=16)
    subject_id = models.CharField(max_length=500)
    aspect = models.CharField(max_length=200, blank=True, default="")
    subject = models.CharField(max_length=300)
    explanation = models.CharField(max_length=1000)
    mark = models.CharField(max_length=200, blank=True, default="")  # what a repair is for
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True, blank=True)
    repairs = models.IntegerField(default=0)
    repaired_at = models.DateTimeField(null=True, blank=True)
    done = models.CharField(max_length=300, blank=True, default="")  # what the last repair did

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(
                fields=["tenant", "kind", "subject_kind", "subject_id", "aspect"],
                condition=~models.Q(state="resolved"),
                name="reconciliation_finding_once",
            ),
        ]
        indexes = [models.Index(fields=["tenant", "state", "-created_at"], name="reconciliation_finding_state")]

    def __str__(self) -> str:
        return f"{self.kind} {self.state}"
