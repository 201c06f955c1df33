"""``manage.py audit``: run an isolation audit here and now, write its report, check one."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from namespaces.audit import evidence
from namespaces.audit.evidence import EvidenceError
from routing import queries
from routing.models import AuditRun, Endpoint
from routing.services.audits import orders, running, targets
from routing.services.audits.targets import Target
from tenants.actor import system
from tenants.core.errors import NotFound, Refusal
from tenants.queries import all_tenants, tenant_id_of
from tenants.scoping import tenant_scope

BUSY = "an audit of this replica is running; ask again when it has ended"


class Command(BaseCommand):
    """Needs what the worker of the queue ``audit`` has: the publish key, the evidence key, a router's internal port."""

    help = "Audit the isolation of replicas: run, report, verify."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        what = parser.add_subparsers(dest="what", required=True)
        run = what.add_parser("run", help="try every replica of an endpoint's pool; exits 1 unless all pass")
        run.add_argument("--endpoint", required=True, help="name or id")
        run.add_argument("--tenant", help="slug; needed where several tenants have an endpoint of this name")
        run.add_argument("--replica", help="one replica only, by id, or by name in an own pool")
        run.add_argument("--repeat", type=int, metavar="N", help="rounds of the main case; without it enough for a bound of 5 %%")
        report = what.add_parser("report", help="write the signed report of a run")
        report.add_argument("--run", required=True, type=UUID)
        report.add_argument("-o", "--out", required=True, type=Path)
        verify = what.add_parser("verify", help="check a report's signature; needs no database")
        verify.add_argument("file", type=Path)
        verify.add_argument("--key", type=Path, help="the public key (32 bytes, or 64 hexadecimal digits); without it our own, if we hold one")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        if options["what"] == "run":
            self._run(options)
        elif options["what"] == "report":
            self._report(options["run"], options["out"])
        else:
            self._verify(options["file"], options["key"])

    # ---- run ---------------------------------------------------------------------------------------------------------------

    def _run(self, options: dict[str, Any]) -> None:
        try:
            tenant_id, endpoint = _endpoint(options["endpoint"], options["tenant"])
            with tenant_scope(tenant_id):
                found = targets.chosen(tenant_id, endpoint, options["replica"])
            ended = [self._one(target, options["repeat"]) for target in found]
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        except running.NotConfigured:
            raise CommandError("SALTROUTE_EVIDENCE_KEY_FILE and SALTROUTE_PUBLISH_KEY_FILE must be set: probes and evidence are signed") from None
        if not all(ended):
            raise CommandError("not every audit passed")

    def _one(self, target: Target, repeat: int | None) -> bool:
        sizes = running.repeated(repeat)
        running.sizes_of(sizes)
        with tenant_scope(target.tenant_id):
            # Whoever may call this holds the publish key: that is the platform's operator.
            run, _ = orders.order(target=target, actor=system("manage.py audit"), trigger="demand", now=timezone.now(), sizes=sizes, platform=True)
        label = f"{target.pool_name}/{target.replica_name or target.replica_id}"
        self.stdout.write(f"{label}: probing through the router, ten seconds to some minutes ...")
        self.stdout.flush()
        ended = running.run(target.tenant_id, run.id)
        if ended is None:
            # Left waiting, a worker would carry it out later, with nobody looking.
            taken_back = orders.withdraw(run=run, reason=BUSY)
            self.stdout.write(f"{label}: refused: {BUSY}" if taken_back else f"{label}: a worker carries it out (run {run.id})")
            return False
        self._show(label, ended)
        return ended.run.outcome == "pass"

    def _show(self, label: str, ended: running.Ended) -> None:
        run = ended.run
        if run.state == "refused":
            self.stdout.write(f"{label}: refused: {run.reason}")
            return
        self.stdout.write(f"{label}: {run.outcome.upper()}, now {ended.state or 'gone'}   run {run.id}")
        for case in run.cases:
            rows = ", ".join(str(row) for row in case["rows"])
            counted = f"{case['negative_probes']} negative, {case['controls_seen']} controls" if case["rounds"] else "-"
            self.stdout.write(f"  {case['outcome']:<16} {case['name']:<14} rows {rows:<44} {counted:<28} {case['reason']}")
        bound = "" if run.failure_bound_ppm is None else f", failure rate at most {run.failure_bound_ppm / 10_000:.1f} % (95 %)"
        self.stdout.write(f"  {run.probes} probes, {run.negative_probes} clean negative ones{bound}; {run.tokens_spent} tokens computed")

    # ---- evidence ----------------------------------------------------------------------------------------------------------

    def _report(self, run_id: UUID, out: Path) -> None:
        for ref in all_tenants():
            with tenant_scope(ref.tenant_id):
                run = AuditRun.objects.filter(tenant_id=ref.tenant_id, id=run_id).first()
            if run is not None and run.evidence is not None:
                out.write_bytes(evidence.report(run.evidence, bytes(run.signature or b""), bytes(run.evidence_key or b"")))
                self.stdout.write(f"{out}: {run.outcome}")
                return
        raise CommandError("there is no such run, or it has not ended")

    def _verify(self, file: Path, key: Path | None) -> None:
        try:
            public_key = _key(key.read_bytes()) if key is not None else settings.EVIDENCE_PUBLIC_KEY
            document = file.read_bytes()
            value = evidence.verify(document, public_key)
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}") from None
        except EvidenceError as error:
            raise CommandError(f"NOT VALID: {error}") from None
        named = evidence.named_key(document).hex()
        if key is not None:
            signer = f"the key given, {named}"
        elif public_key is not None:
            signer = f"this installation's key {named}"
        else:
            signer = f"the key that it names itself, {named}; hold that against the one that GET /api/v1/evidence-key shows"
        self.stdout.write(f"valid: signed with {signer}")
        self.stdout.write(f"run {value.get('run')}: {value.get('outcome')}, {value.get('negative_probes')} clean negative probes")


def _endpoint(reference: str, slug: str | None) -> tuple[UUID, Endpoint]:
    """The endpoint, and the tenant that has it.

    Raises:
        CommandError: none, or several tenants have one of this name.
    """
    if slug is None:
        ids = [ref.tenant_id for ref in all_tenants()]
    else:
        tenant_id = tenant_id_of(slug)
        if tenant_id is None:
            raise CommandError(f"there is no tenant {slug}")
        ids = [tenant_id]
    found: list[tuple[UUID, Endpoint]] = []
    for one in ids:
        with tenant_scope(one):
            try:
                found.append((one, queries.endpoint(one, reference)))
            except NotFound:
                continue
    if len(found) > 1:
        raise CommandError(f"several tenants have an endpoint {reference}: name one with --tenant")
    if not found:
        raise CommandError(f"there is no endpoint {reference}")
    return found[0]


def _key(raw: bytes) -> bytes:
    """A public key as a file holds it, binary or in hexadecimal digits.

    Raises:
        EvidenceError: neither.
    """
    if len(raw) == 32:
        return raw
    try:
        return bytes.fromhex(raw.decode().strip())
    except ValueError:
        raise EvidenceError("the key file holds neither 32 bytes nor 64 hexadecimal digits") from None
