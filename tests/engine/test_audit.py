"""Isolation audits of two real vLLM replicas behind the whole product: what they may do before, what the audit finds, what they may do afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine import wire
from tests.engine.installation import Installation
from tests.engine.rig import KEYS, PAIR, SOLO, Rig
from tests.engine.vllm_cpu import BLOCK_TOKENS, CONTEXT_TOKENS, Replica
from tests.engine.waiting import until
from tests.product import Product, fresh_home, remove

pytestmark = pytest.mark.engine

ROUNDS = 23  # of two negative probes each; with the other cases' it is what a bound of 5 % needs
BOUND_PERCENT = 5.0
PLANNED_S = 60.0  # the calendar looks every 15 s
AUDIT_S = 900.0  # both replicas, one after the other
COMMAND_S = 60.0
ASSIGNED_S = 120.0  # tenants' cache keys are made first
PUBLISHED_S = 30.0
PROBE_TOKENS = 1024  # the least that a probe is to have
PASSED = "controls hit, nothing was shared"
TENANTS = sorted({tenant for tenant, _ in KEYS.values()})
TRIED = {"two_salts", "part_of_salt", "routes", "client_salts"}  # what an engine without adapters can be tried with
LABEL, SCOPE, ROUTE, STREAM, EXPECTED, STATUS, CACHED, PROMPT, TTFT_US = range(9)  # a probe of a report


@dataclass(frozen=True)
class Audit:
    """What ``audit run`` printed, and the reports of its runs."""

    done: subprocess.CompletedProcess[str]
    took_s: float
    files: list[Path]

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.files]


@pytest.fixture(scope="module")
def rig(replicas: list[Replica]) -> Iterator[Rig]:
    """Audited pools whose audits wait: the calendar orders the first ones by itself, and their worker is held, so that "before the audit"
    lasts as long as tests need it. The last test lets it go on.
    """
    home = fresh_home()
    try:
        product = Product.start(home, fleet=0)
        try:
            _hold_worker(product, signal.SIGSTOP)
            yield Rig.declare_audited(product, replicas, Installation.default().model / "tokenizer.json")
        finally:
            _hold_worker(product, signal.SIGCONT)
            product.stop()
    finally:
        remove(home)


@pytest.fixture(scope="module")
def unverified(rig: Rig) -> dict[str, set[str]]:
    """Before the audit: by engine, which callers it answered, asked again and again until every engine is one namespace's."""
    served: dict[str, set[str]] = {row["url"]: set() for row in _rows(rig)}

    def all_taken() -> bool:
        for model in (PAIR, SOLO):
            for key in KEYS:
                _asked(rig, key, model, served)
        return all(row["dedicated_namespace"] for row in _rows(rig))

    until("every replica is one namespace's", all_taken, within_s=ASSIGNED_S)
    assert all_taken()  # one more round, in which nobody waits for an assignment
    assert {row["isolation"] for row in _rows(rig)} == {"unverified"}
    until("the calendar ordered an audit of each", lambda: len(_firsts(rig)) == len(rig.replicas), within_s=PLANNED_S)
    return served


@pytest.fixture(scope="module")
def audit(rig: Rig, unverified: dict[str, set[str]], tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """``manage.py audit run`` over both replicas, and the report of each."""
    assert unverified
    began_s = time.monotonic()
    done = rig.manage("audit", "run", "--endpoint", PAIR, "--tenant", "acme", "--repeat", str(ROUNDS), within_s=AUDIT_S)
    took_s = time.monotonic() - began_s
    files = []
    for run in re.findall(r"run ([0-9a-f-]{36})", done.stdout):
        file = tmp_path_factory.mktemp("report") / f"{run}.json"
        written = rig.manage("audit", "report", "--run", run, "-o", str(file), within_s=COMMAND_S)
        assert written.returncode == 0, written.stderr
        files.append(file)
    return Audit(done, took_s, files)


def _hold_worker(product: Product, number: signal.Signals) -> None:
    os.kill(product.pid("celery-audit"), number)


def _rows(rig: Rig) -> list[dict[str, Any]]:
    """The platform's replicas as the control API shows them: the first engine stands in both pools."""
    rows: list[dict[str, Any]] = rig.api("platform", "replicas")["results"]
    return rows


def _firsts(rig: Rig) -> list[dict[str, Any]]:
    """The audits that the calendar ordered because the replicas are new."""
    return [run for tenant in TENANTS for run in rig.api(tenant, "audits")["results"] if run["trigger"] == "first"]


def _asked(rig: Rig, key: str, model: str, served: dict[str, set[str]]) -> wire.Answer:
    """One request; whoever answers is told by the engines' own counters. A refusal must be the one for want of isolation."""
    body = {"model": model, "prompt": f"{uuid.uuid4()} Which gate is open?", "max_tokens": 1}
    before = {each.url: each.metric("vllm:prompt_tokens_total") for each in rig.replicas}
    answer = wire.post(f"{rig.product.router_url}/v1/completions", body, headers=rig.bearer(key))
    if answer.status == 200:
        until("an engine counted the prompt", lambda: bool(_grown(rig, before)), within_s=10)
        for url in _grown(rig, before):
            served[url].add(key)
    return answer


def _grown(rig: Rig, before: dict[str, float]) -> list[str]:
    return [each.url for each in rig.replicas if each.metric("vllm:prompt_tokens_total") > before[each.url]]


def _tried(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {case["name"]: case for case in report["cases"] if case["rounds"]}


def test_an_unverified_replica_serves_one_namespace(rig: Rig, unverified: dict[str, set[str]]) -> None:
    assert {url: len(callers) for url, callers in unverified.items()} == {each.url: 1 for each in rig.replicas}


def test_an_unverified_replica_refuses_the_second_namespace(rig: Rig, unverified: dict[str, set[str]]) -> None:
    [owner] = unverified[rig.replicas[0].url]
    for key in sorted(KEYS.keys() - {owner}):
        answer = _asked(rig, key, SOLO, unverified)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "isolation_unavailable")


def test_both_replicas_pass_and_the_command_says_what_that_is_worth(audit: Audit) -> None:
    assert audit.done.returncode == 0, audit.done.stdout + audit.done.stderr
    sys.stdout.write(f"\naudit run of two replicas: {audit.took_s:.1f} s\n{audit.done.stdout}")
    assert len(re.findall(r"^pair/\S+: PASS, now isolated   run ", audit.done.stdout, re.MULTILINE)) == 2
    told = re.findall(
        r"^  (\d+) probes, (\d+) clean negative ones, failure rate at most ([\d.]+) % \(95 %\); (\d+) tokens computed$",
        audit.done.stdout,
        re.MULTILINE,
    )
    reports = [document["evidence"] for document in audit.documents]
    assert [(int(probes), int(negatives), int(tokens)) for probes, negatives, _, tokens in told] == [
        (each["probes"], each["negative_probes"], each["computed_tokens"]) for each in reports
    ]
    for _, negatives, bound, _ in told:
        assert int(negatives) >= 2 * ROUNDS
        assert 0 < float(bound) <= BOUND_PERCENT


def test_every_case_ran_and_its_controls_hit(audit: Audit) -> None:
    assert len(audit.documents) == 2
    for document in audit.documents:
        report = document["evidence"]
        assert report["judged_by"].startswith("reported cached tokens")
        assert report["block_tokens"] == BLOCK_TOKENS
        cases = _tried(report)
        assert cases.keys() == TRIED
        assert {case["outcome"] for case in cases.values()} == {"pass"}
        assert {case["outcome"] for case in report["cases"]} <= {"pass", "proved elsewhere", "not expressible"}
        for case in cases.values():
            controls = [probe for probe in case["probes"] if probe[EXPECTED] == "hit"]
            assert case["controls_seen"] == len(controls) > 0
            assert all(probe[STATUS] == 200 and probe[CACHED] >= probe[PROMPT] - 2 * BLOCK_TOKENS for probe in controls)
            negatives = [probe for probe in case["probes"] if probe[EXPECTED] in ("apart", "refused or apart")]
            assert case["negative_probes"] == len(negatives) > 0
            answered = [probe for probe in negatives if probe[STATUS] == 200]
            assert all(probe[CACHED] < report["template_tokens"] + BLOCK_TOKENS for probe in answered)
            assert all(400 <= probe[STATUS] < 500 and probe[EXPECTED] == "refused or apart" for probe in negatives if probe not in answered)


def test_the_probes_fit_the_engine(audit: Audit) -> None:
    for document in audit.documents:
        report = document["evidence"]
        probes = [probe for case in report["cases"] for probe in case["probes"] if probe[STATUS] == 200]
        assert all(PROBE_TOKENS <= probe[PROMPT] < CONTEXT_TOKENS for probe in probes)
        times_ms = {kind: sorted(probe[TTFT_US] / 1000 for probe in probes if probe[EXPECTED] == kind) for kind in ("fresh", "hit", "apart")}
        middles = ", ".join(f"{kind} {values[len(values) // 2]:.0f} ms of {len(values)}" for kind, values in times_ms.items())
        sizes = [probe[PROMPT] for probe in probes]
        took_s = (report["finished_at_us"] - report["started_at_us"]) / 1e6
        sys.stdout.write(
            f"\n{report['replica']['id']}: {report['probes']} probes of {min(sizes)} to {max(sizes)} tokens in {took_s:.1f} s,"
            f" {report['computed_tokens']} computed; bound {report['failure_rate_bound_ppm'] / 10_000:.1f} %; template {report['template_tokens']};"
            f" medians: {middles}; times read {report['times']['reading']}\n"
        )


def test_the_reports_verify_and_a_changed_one_does_not(rig: Rig, audit: Audit, tmp_path: Path) -> None:
    key = tmp_path / "evidence.hex"
    key.write_text(rig.api("acme", "evidence-key")["public_key"])
    for file, document in zip(audit.files, audit.documents, strict=True):
        checked = rig.manage("audit", "verify", str(file), "--key", str(key), within_s=COMMAND_S)
        assert checked.returncode == 0, checked.stderr
        assert f"run {document['evidence']['run']}: pass" in checked.stdout
    forged = tmp_path / "forged.json"
    document["evidence"]["negative_probes"] += 1
    forged.write_text(json.dumps(document))
    refused = rig.manage("audit", "verify", str(forged), "--key", str(key), within_s=COMMAND_S)
    assert refused.returncode != 0
    assert "NOT VALID" in refused.stderr


def test_the_replicas_are_isolated_and_serve_everybody(rig: Rig, audit: Audit) -> None:
    runs = {document["evidence"]["replica"]["id"]: document["evidence"] for document in audit.documents}
    rows = _rows(rig)
    assert {(row["isolation"], row["dedicated_namespace"]) for row in rows} == {("isolated", None)}
    assert len({row["url"] for row in rows if row["id"] in runs}) == len(rig.replicas)
    for row in rows:
        if row["id"] in runs:
            assert row["audit_tokens_today"] == runs[row["id"]]["computed_tokens"]
    served: dict[str, set[str]] = {row["url"]: set() for row in rows}

    def all_served() -> bool:
        return all(_asked(rig, key, model, served).status == 200 for key in KEYS for model in (PAIR, SOLO))

    until("every key is answered by both endpoints", all_served, within_s=PUBLISHED_S)
    assert served[rig.replicas[0].url] == KEYS.keys()


def test_the_calendars_own_audits_pass_as_well(rig: Rig, audit: Audit) -> None:
    """They were ordered when the replicas were new, and the worker comes to them now; both at once."""
    assert audit.done.returncode == 0
    _hold_worker(rig.product, signal.SIGCONT)
    ordered: list[dict[str, Any]] = []

    def ended() -> bool:
        ordered[:] = _firsts(rig)
        return len(ordered) == len(rig.replicas) and all(run["state"] in ("finished", "refused") for run in ordered)

    until("the calendar's audits have ended", ended, within_s=AUDIT_S)
    assert [(run["state"], run["outcome"], run["reason"]) for run in ordered] == [("finished", "pass", PASSED)] * len(rig.replicas)
    assert {row["isolation"] for row in _rows(rig)} == {"isolated"}
    for run in ordered:
        sys.stdout.write(
            f"\nby the calendar, through {run['endpoint']}: {run['probes']} probes, bound {run['failure_rate_bound']:.3f},"
            f" {run['tokens_spent']} tokens, {run['started_at']} to {run['finished_at']}\n"
        )
