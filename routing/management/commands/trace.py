"""``manage.py trace analyze FILE`` and ``manage.py trace replay FILE --policy ...``: what a trace could reuse, what policies make of it."""

from __future__ import annotations

import json
import secrets
from argparse import ArgumentParser
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from django.core.management.base import BaseCommand, CommandError

from routing.core.policy import PolicyError, RoutingPolicy, compile_routing
from routing.traces.analysis import LIMIT_BLOCKS, analyse, ceiling
from routing.traces.fleet import FleetConfig, Residency
from routing.traces.formats import TraceError, read
from routing.traces.replay import Replay
from routing.traces.report import analysis_lines, analysis_values, replay_lines
from routing.traces.request import Trace, TraceRequest, coarsen

REPLAY_BLOCK_TOKENS = 512


class Command(BaseCommand):
    """Reads files only: no database, no key. A replay holds the trace in memory; an analysis does not."""

    help = "Analyse a trace file, or replay it through routing policies in simulated time."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        analyze = verbs.add_parser("analyze", help="ceilings, capacity curve, reuse gaps, where prompts part, and advice")
        analyze.add_argument("--limit", type=int, default=LIMIT_BLOCKS, help="distinct blocks kept; beyond it figures come from a sample")
        play = verbs.add_parser("replay", help="TTFT, hits and load of each policy on a simulated fleet")
        play.add_argument("--policy", action="append", help="a policy's name, or its document as JSON; may be repeated; default ettft")
        play.add_argument("--speeds", default="1,1,1,1", help="one factor for each replica, comma-separated")
        play.add_argument("--cache-tokens", type=int, default=1_000_000, help="KV cache of each replica")
        play.add_argument("--slo-ttft-s", type=float, help="TTFT objective")
        play.add_argument("--speedup", type=float, default=1.0, help="divides the trace's times")
        play.add_argument("--residency", choices=get_args(Residency), default="events")
        play.add_argument("--seed", type=int, default=1)
        for verb in (analyze, play):
            verb.add_argument("file", type=Path, help="a trace, plain or gzip, or a folder of session files")
            verb.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        path: Path = options["file"]
        try:
            trace = read(path, key=secrets.token_bytes(32))
            if options["verb"] == "analyze":
                self._analyze(trace, options)
            else:
                self._replay(trace, options)
        except TraceError as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from None

    def _analyze(self, trace: Trace, options: dict[str, Any]) -> None:
        if options["limit"] < 1000:
            raise CommandError("--limit must be at least 1000")
        report = analyse(trace.requests, trace.block_tokens, timed=trace.timed, limit=options["limit"])
        if options["json"]:
            self.stdout.write(json.dumps(analysis_values(report), indent=2))
            return
        for line in analysis_lines(trace.name, report):
            self.stdout.write(line)

    def _replay(self, trace: Trace, options: dict[str, Any]) -> None:
        fleet = _fleet(options)
        policies = [_policy(spec) for spec in options["policy"] or ["ettft"]]
        if options["speedup"] <= 0:
            raise CommandError("--speedup must be above 0")
        if trace.block_tokens <= REPLAY_BLOCK_TOKENS and REPLAY_BLOCK_TOKENS % trace.block_tokens == 0:
            trace = coarsen(trace, REPLAY_BLOCK_TOKENS)
        fleet = replace(fleet, block_tokens=trace.block_tokens)
        requests = [_faster(one, options["speedup"]) for one in trace.requests]
        possible = ceiling(requests, trace.block_tokens)
        values = []
        if not options["json"]:
            self.stdout.write(f"{trace.name}: {len(requests):,} requests. {fleet.line()}.")
        for policy in policies:
            again = Trace(trace.name, trace.block_tokens, trace.timed, iter(requests))
            summary = Replay(again, fleet, policy, ttft_slo_s=options["slo_ttft_s"], seed=options["seed"]).run().summary()
            values.append({"policy": policy.policy, "ceiling": possible} | asdict(summary))
            if not options["json"]:
                for line in replay_lines(policy.policy, summary, possible):
                    self.stdout.write(line)
        if options["json"]:
            self.stdout.write(json.dumps({"trace": trace.name, "fleet": fleet.line(), "runs": values}, indent=2))


def _faster(request: TraceRequest, speedup: float) -> TraceRequest:
    return request if speedup == 1.0 else replace(request, at_s=request.at_s / speedup)


def _fleet(options: dict[str, Any]) -> FleetConfig:
    try:
        speeds = tuple(float(part) for part in options["speeds"].split(","))
        longest = min(262_144, options["cache_tokens"])
        return FleetConfig(speeds=speeds, cache_tokens=options["cache_tokens"], max_model_len_tokens=longest, residency=options["residency"])
    except ValueError as error:
        raise CommandError(f"--speeds, --cache-tokens: {error}") from None


def _policy(spec: str) -> RoutingPolicy:
    try:
        return compile_routing(json.loads(spec) if spec.lstrip().startswith("{") else {"policy": spec})
    except json.JSONDecodeError as error:
        raise CommandError(f"--policy: not JSON: {error}") from None
    except PolicyError as error:
        raise CommandError(f"--policy: {error}") from None
