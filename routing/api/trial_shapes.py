"""What the API takes and gives of trials and dry runs. Times in seconds; null is not known, or not the caller's to read."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from routing.api.shapes import Document, PolicyUse, Reason
from routing.services.dry_run import GoesBy
from tenants.api.bodies import Body

Share = Annotated[float, msgspec.Meta(description="Of the endpoint's prompts, those that the candidate places: 0 none (shadow) to 1 all.")]


class TrialWanted(Body):
    """A candidate to try. A conversation stays on one side."""

    policy: Document
    share: Share = 0.0


class Promotion(Body):
    """The candidate's version whose report was read: another one that is tried by now is not promoted in its place."""

    version: int | None = None
    reason: Reason = ""


class DryRunWanted(Body):
    """A policy to hold against what was decided: a name, {name, version}, {version} of the endpoint's own policy, or a document."""

    policy: Document


class EstimateOut(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and its 95 % interval; no bounds where there are too few decisions for one."""

    value: float
    low: float | None
    high: float | None


class SampleOut(msgspec.Struct, frozen=True, kw_only=True):
    """Mean, median and 95th percentile."""

    count: int
    mean: EstimateOut | None
    p50: EstimateOut | None
    p95: EstimateOut | None


class ArmOut(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the requests that one policy placed."""

    requests: int
    ttft_s: SampleOut
    cached_tokens: SampleOut


class FiguresOut(msgspec.Struct, frozen=True, kw_only=True):
    """``live_ttft_s``, ``candidate_ttft_s`` and what is saved are predictions, paired; ``live`` and ``candidate`` are what was realised since the
    candidate first placed a request. Differences are candidate minus live."""

    decisions: int
    agreement: EstimateOut | None
    live_ttft_s: SampleOut
    candidate_ttft_s: SampleOut
    ttft_difference_s: EstimateOut | None
    tokens_saved: float
    tokens_saved_each: EstimateOut | None
    live: ArmOut
    candidate: ArmOut
    realised_difference_s: EstimateOut | None
    realised_cached_difference: EstimateOut | None


class ReportOut(msgspec.Struct, frozen=True, kw_only=True):
    """A trial's report. ``rounded``: the pool is the platform's, so predicted times are rounded means."""

    since: datetime
    truncated: Annotated[bool, msgspec.Meta(description="There were more decisions than are read: the newest count.")]
    rounded: bool
    figures: FiguresOut
    method: str


class TrialOut(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint's trial. ``candidate`` null: none runs. ``back_to`` is what a roll-back returns to; null while a trial runs, since it ends that."""

    endpoint: str
    endpoint_id: UUID
    live: PolicyUse
    candidate: PolicyUse | None
    share: float
    since: datetime | None
    back_to: PolicyUse | None
    applied: Annotated[str, msgspec.Meta(description="Which routers run the tenant's newest configuration.")]
    report: ReportOut | None


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions that could not be redone, by why."""

    why: str
    count: int


class SummaryOut(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions before and after; means of what was expected."""

    redone: int
    differing: int
    ttft_before_s: float | None
    ttft_after_s: float | None
    cached_before: float | None
    cached_after: float | None
    left_out: list[LeftOut]


class WeighedOut(msgspec.Struct, frozen=True, kw_only=True):
    """One replica before and after. On a pool of the platform's only what is the tenant's own; a policy that scores no seconds has no score."""

    replica: str
    chosen_before: bool
    chosen_after: bool
    expected_ttft_s: float | None
    expected_cached_tokens: float
    terms_before: dict[str, float]
    terms_after: dict[str, float]
    score_before_s: float | None
    score_after_s: float | None
    matched_tokens: int
    in_flight: int | None


class ExampleOut(msgspec.Struct, frozen=True, kw_only=True):
    """One decision: the newest that differs, else the newest."""

    decision_id: UUID
    started_at: float
    goes_by: Annotated[GoesBy, msgspec.Meta(description="What the policy orders replicas by; `score` is in seconds.")]
    candidates: list[WeighedOut]


class DryRunOut(msgspec.Struct, frozen=True, kw_only=True):
    """Past decisions under another policy, one step ahead: load and residency are those of the time."""

    since: datetime
    decisions: int
    went_wrong: Annotated[int, msgspec.Meta(description="Of them, kept because they went wrong; the others are a sample of all requests.")]
    truncated: bool
    rounded: bool
    summary: SummaryOut
    example: ExampleOut | None
