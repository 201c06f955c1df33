"""``manage.py trace analyze|replay FILE``: what a trace could reuse, what policies make of it; ``--endpoint`` instead of FILE reads own traffic.

``manage.py trace export --endpoint E``: what was captured, as a file for both.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import msgspec
from django.core.management.base import BaseCommand, CommandError

from routing.core.policy import PolicyError, compile_routing
from routing.management import own_traffic
from routing.traces.analysis import LIMIT_BLOCKS, Report
from routing.traces.fleet import Residency
from routing.traces.formats import TraceError, read
from routing.traces.measure import Summary
from routing.traces.progress import Bar, CheckpointFile, Unusable, Watched, about
from routing.traces.report import analysis_lines, replay_lines
from routing.traces.request import in_own_scope
from routing.traces.work import Analyze, FleetShape, Head, NamedPolicy, Outcome, Replay, TooLarge, Watcher, Work, perform

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
_SHOWN_ELSEWHERE = ("html", "json", "checkpoint")  # options that change nothing of the work


class Command(BaseCommand):
    """With a file: no database, no key. With ``--endpoint`` it reads the database. A replay holds the trace in memory; an analysis does not."""

    help = "Analyse a trace, replay it through routing policies in simulated time, or write captured traffic into a file."
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
            verb.add_argument("file", type=Path, nargs="?", help="a trace, plain or gzip, or a folder of session files")
            own_traffic.add_source(verb, records=True)
            verb.add_argument("--json", action="store_true", help="print one JSON document")
            verb.add_argument("--html", type=Path, metavar="PAGE", help="write the report with its plots as one self-contained page")
            verb.add_argument("--checkpoint", type=Path, metavar="C", help="keep what was done in C; the same command goes on from there")

        export = verbs.add_parser("export", help="what was captured of an endpoint, as Mooncake's JSON lines with ids numbered anew")
        own_traffic.add_source(export, records=False)
        export.add_argument("--out", type=Path, required=True, help="a file that is not there yet, or - for the standard output")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        if options["verb"] == "export" or (options["file"] is None and options["endpoint"] is not None):
            self._own(options)
            return
        path: Path | None = options["file"]
        if path is None or options["endpoint"] is not None:
            raise CommandError("name one input: a file, or an endpoint with --endpoint")
        work = _analyze(options) if options["verb"] == "analyze" else _replay(options)
        wanted = {name: repr(value) for name, value in sorted(options.items()) if name in _own(options)}
        try:
            kept = CheckpointFile(options["checkpoint"], about(path, wanted))
            done = self._perform(path, work, kept)
            if options["html"] is not None:
                options["html"].write_text(done.html, encoding="utf-8")
        except TraceError as error:
            raise CommandError(str(error)) from None
        except (Unusable, TooLarge, ValueError) as error:
            raise CommandError(f"{path.name}: {error}") from None
        except OSError as error:
            raise CommandError(f"{error.filename or path}: {error.strerror}") from None
        except KeyboardInterrupt:
            go_on = "The same command goes on from there." if options["checkpoint"] else "With --checkpoint it could go on."
            raise CommandError(f"interrupted. {go_on}", returncode=INTERRUPTED) from None
        kept.done()
        lines = [json.dumps(done.values, indent=2)] if options["json"] else _lines(done.values)
        for line in lines:
            self.stdout.write(line)

    def _own(self, options: dict[str, Any]) -> None:
        """What own traffic is asked for."""
        if options["endpoint"] is None:
            raise CommandError("name an endpoint with --endpoint")
        if options["verb"] == "export":
            count = own_traffic.export(options, self.stdout)
            self.stderr.write(f"{count:,} requests")
            return
        if options["checkpoint"] is not None:
            raise CommandError("--checkpoint is for files: export the traffic first")
        if options["verb"] == "analyze" and options["records"]:
            wanted, found = own_traffic.figures(options)
            lines = [json.dumps(asdict(found), indent=2)] if options["json"] else own_traffic.figure_lines(wanted.name, found)
            for line in lines:
                self.stdout.write(line)
            return
        work = _analyze(options) if options["verb"] == "analyze" else _replay(options)
        trace, notes = own_traffic.opened(options)
        bar = Bar(sys.stderr)
        head = Head(name=trace.name, block_tokens=trace.block_tokens, timed=trace.timed, work=work, isolated=True, notes=notes)
        try:
            done = perform(head, trace.requests, count=None, watcher=Watcher(progress=bar.show))
        finally:
            bar.clear()
        if options["html"] is not None:
            options["html"].write_text(done.html, encoding="utf-8")
        for line in [json.dumps(done.values, indent=2)] if options["json"] else [*_lines(done.values), *notes]:
            self.stdout.write(line)

    def _perform(self, path: Path, work: Work, kept: CheckpointFile) -> Outcome:
        watched = None if path.is_dir() else Watched(path)
        bar = Bar(sys.stderr, share=None if watched is None else watched.share)
        trace = read(path if watched is None else watched, key=kept.key)
        head = Head(name=trace.name, block_tokens=trace.block_tokens, timed=trace.timed, work=work)
        watcher = Watcher(progress=bar.show, checkpoint=kept.keep)
        try:
            requests = map(in_own_scope, trace.requests) if isinstance(work, Replay) else trace.requests
            return perform(head, requests, count=None, watcher=watcher, before=kept.before)
        finally:
            bar.clear()


def _own(options: dict[str, Any]) -> set[str]:
    """Options that the work depends on."""
    common = {"verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks", "stdout", "stderr", "file"}
    return set(options) - common - set(_SHOWN_ELSEWHERE) - set(own_traffic.OPTIONS)


def _lines(values: dict[str, Any]) -> list[str]:
    if values["kind"] == "analyze":
        return list(analysis_lines(values["trace"], msgspec.convert(values, Report)))
    lines = [f"{values['trace']}: {values['requests']:,} requests. {values['fleet']}."]
    for run in values["runs"]:
        lines += replay_lines(run["name"], msgspec.convert(run, Summary), run["ceiling"], slo_s=values["slo_ttft_s"])
    return lines


def _analyze(options: dict[str, Any]) -> Analyze:
    if options["limit"] < 1000:
        raise CommandError("--limit must be at least 1000")
    return Analyze(limit_blocks=options["limit"])


def _replay(options: dict[str, Any]) -> Replay:
    if options["speedup"] <= 0:
        raise CommandError("--speedup must be above 0")
    policies = tuple(_policy(spec) for spec in options["policy"] or ["ettft"])
    fleet = FleetShape(speeds=_speeds(options["speeds"]), cache_tokens=_cache_tokens(options["cache_tokens"]), residency=options["residency"])
    target_s = options["slo_ttft_s"]
    if target_s is not None and target_s <= 0:
        raise CommandError("--slo-ttft-s must be above 0")
    return Replay(policies=policies, fleet=fleet, slo_ttft_s=target_s, speedup=options["speedup"], seed=options["seed"])


def _speeds(text: str) -> tuple[float, ...]:
    try:
        speeds = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise CommandError("--speeds: use numbers with commas between them, such as 1,1,0.5") from None
    if not all(0 < speed < 1e6 for speed in speeds):
        raise CommandError("--speeds: each must be above 0")
    return speeds


def _cache_tokens(tokens: int) -> int:
    if tokens < 512:
        raise CommandError("--cache-tokens must hold at least one block of 512 tokens")
    return tokens


def _policy(spec: str) -> NamedPolicy:
    try:
        document = json.loads(spec) if spec.lstrip().startswith("{") else {"policy": spec}
        compiled = compile_routing(document)
    except json.JSONDecodeError as error:
        raise CommandError(f"--policy: not JSON: {error}") from None
    except PolicyError as error:
        raise CommandError(f"--policy: {error}") from None
    more = ", ".join(f"{name} {value}" for name, value in document.items() if name != "policy")
    return NamedPolicy(name=f"{compiled.policy} ({more})" if more else compiled.policy, spec=document)
