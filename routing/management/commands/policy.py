"""``manage.py policy explain``: a routing policy held against what an endpoint decided lately."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from routing import queries
from routing.core.policy import RoutingPolicy
from routing.models import Endpoint
from routing.services import dry_run, policy_text
from routing.services.dry_run import DryRun, Example, GoesBy, Weighed
from tenants.core.errors import NotFound, Refusal
from tenants.management import tenant
from tenants.scoping import tenant_scope


class Command(BaseCommand):
    """For the platform's operator: nothing is rounded or left out. Stores nothing."""

    help = "Redo an endpoint's recent decisions under another policy, from what their records hold, and say what would have differed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        explain = verbs.add_parser("explain", help="redo recent decisions and explain one")
        explain.add_argument("--tenant", metavar="SLUG", help="needed where there are several tenants")
        explain.add_argument("--endpoint", required=True, help="id or name")
        which = explain.add_mutually_exclusive_group()
        which.add_argument("--version", type=int, metavar="N", help="of the endpoint's own policy; its candidate, else the one it runs, without this")
        which.add_argument("--file", type=Path, metavar="F", help="a policy document as YAML")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        tenant_id = tenant.named(options["tenant"])
        try:
            with tenant_scope(tenant_id):
                endpoint = queries.endpoint(tenant_id, options["endpoint"])
                name, policy = _policy(tenant_id, endpoint, options["version"], options["file"])
                found = dry_run.run(tenant_id=tenant_id, endpoint=endpoint, policy=policy, whole=True, own_replica_ids=None, now=timezone.now())
        except NotFound:
            raise CommandError("there is no such endpoint in this tenant") from None
        except Refusal as refusal:
            raise CommandError(f"{refusal.field or 'refused'}: {refusal.message}") from None
        self.stdout.write("\n".join(_lines(endpoint.name, name, found)))


def _policy(tenant_id: UUID, endpoint: Endpoint, version: int | None, file: Path | None) -> tuple[str, RoutingPolicy]:
    wanted: object
    if file is not None:
        try:
            wanted, name = policy_text.parse(file.read_text(errors="replace"), "routing"), str(file)
        except OSError as error:
            raise CommandError(f"{file} cannot be read: {error.strerror}") from None
    elif version is not None:
        wanted, name = {"version": version}, f"{endpoint.routing_policy.policy.name} v{version}"
    else:
        row = endpoint.candidate_policy or endpoint.routing_policy
        wanted, name = row.spec, f"{row.policy.name} v{row.version}"
    return name, dry_run.version_or_document(tenant_id=tenant_id, endpoint=endpoint, wanted=wanted, field="policy")


def _lines(endpoint: str, policy: str, found: DryRun) -> list[str]:
    summary = found.summary
    bound = f"the newest {dry_run.MAX_DECISIONS:,}" if found.truncated else "all"
    lines = [
        f"endpoint {endpoint}, policy {policy}",
        f"{found.decisions:,} decisions with their candidates since {found.since:%Y-%m-%d %H:%M} UTC ({bound}), one step ahead: load and residency",
        "as they were; nothing was stored",
        f"{found.went_wrong:,} of them were kept because they went wrong, and weigh more here than among all requests",
        "",
        f"redone        {summary.redone:,}",
        *(f"left out      {one.count:,}: {one.why}" for one in summary.left_out),
    ]
    if summary.redone:
        lines += [
            f"would differ  {summary.differing:,} ({summary.differing / summary.redone:.1%})",
            f"expected time to first token  {_seconds(summary.ttft_before_s)} -> {_seconds(summary.ttft_after_s)} (mean)",
            f"expected cached tokens        {summary.cached_before or 0:,.0f} -> {summary.cached_after or 0:,.0f} (mean)",
        ]
    return lines if found.example is None else [*lines, "", *_example(found.example)]


def _example(example: Example) -> list[str]:
    lines = [f"for example decision {example.decision_id}, best first by the policy:"]
    for one in example.candidates:
        marks = [word for word, chosen in (("it went here", one.chosen_before), ("it would go here", one.chosen_after)) if chosen]
        lines.append(f"  {one.replica}{'  <- ' + ', '.join(marks) if marks else ''}")
        lines.append(f"    expects {_seconds(one.expected_ttft_s)} and {one.expected_cached_tokens:,.0f} cached tokens")
        lines += [f"    {said}" for said in _load(example.goes_by, one)]
        names = sorted(set(one.terms_before) | set(one.terms_after)) if example.goes_by == "score" else []
        lines += [f"    {name:15} {_seconds(one.terms_before.get(name))} -> {_seconds(one.terms_after.get(name))}" for name in names]
    return lines


def _load(goes_by: GoesBy, one: Weighed) -> list[str]:
    """What a policy without scores goes by."""
    in_flight = f"{one.in_flight or 0:,} requests in flight"
    return {"load": [in_flight], "match": [f"{one.matched_tokens:,} matched tokens, {in_flight}"]}.get(goes_by, [])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f} s"
