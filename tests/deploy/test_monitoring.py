"""The dashboard and the alert rules: every metric and label that they name exists on a router's page."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from routing.core.cause import PARTS
from routing.core.snapshot import QuotaEntry
from routing.dataplane import quotas
from tests.fakes.replica import Script, chunk, usage_chunk
from tests.fakes.rig import HI, bumped, named, standard_rig

DEPLOY = Path(__file__).parents[2] / "deploy"
_METRIC = re.compile(r"\b(saltroute_[a-z0-9_]+|gen_ai_[a-z0-9_]+)(?=[{\[)\s,]|$)")
_SELECTOR = re.compile(r"\b((?:saltroute|gen_ai)_[a-z0-9_]+)\{([^}]*)\}")
_BY = re.compile(r"by \(([^)]*)\)")
_OF_PROMETHEUS = {"instance", "job", "le"}


def _dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/routers.json").read_text())
    return found


def _rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def _expressions() -> list[str]:
    return [target["expr"] for panel in _dashboard()["panels"] for target in panel["targets"]] + [rule["expr"] for rule in _rules()]


def _named(expression: str) -> set[str]:
    grouped = {name.strip() for group in _BY.findall(expression) for name in group.split(",")}
    return {name for name in _METRIC.findall(expression) if name not in grouped}


async def _page(state: Path) -> dict[str, set[str]]:
    """The series of a router that has served, failed and refused something, with their labels."""
    async with standard_rig(state, scrape_s=0.05) as rig:
        for one in (rig.a, rig.b):
            one.script = Script(sse=[chunk("hel"), chunk("lo", finish="stop"), usage_chunk(prompt=40, completion=3, cached=16), "[DONE]"])
        await rig.chat({**HI, "stream": True})
        for one in (rig.a, rig.b):
            one.script = Script(status=500, body={})
        await rig.chat()
        rig.a.script = rig.b.script = None
        rig.publish(bumped(rig.acme, quotas=(QuotaEntry(id=named("quota"), of="tenant", requests_per_minute=1),)))
        assert 429 in [(await rig.chat()).status for _ in range(2)]
        text = rig.router.plane.metrics.page().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for suffix in ("", "_total", "_bucket", "_count", "_sum") if family.type in ("counter", "histogram") else ("",):
            found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def test_every_metric_that_is_named_exists_with_its_labels(tmp_path: Path) -> None:
    page = await _page(tmp_path)
    assert len(_expressions()) > 25
    for expression in _expressions():
        used = _named(expression)
        assert used, expression
        for metric in used:
            assert metric in page, f"{metric} of {expression}"
        labels = {name.strip() for group in _BY.findall(expression) for name in group.split(",")} - _OF_PROMETHEUS
        for metric, selector in _SELECTOR.findall(expression):
            assert metric in page
            labels |= {part.split("=")[0].rstrip("!~").strip() for part in selector.split(",")} - _OF_PROMETHEUS
        known = set().union(*(page[metric] for metric in used))
        if known:  # a family of which nothing happened yet shows no labels
            assert labels <= known, f"{labels - known} of {expression}"


async def test_a_name_that_does_not_exist_would_be_found(tmp_path: Path) -> None:
    """The control: the same look-up misses what is not there."""
    page = await _page(tmp_path)
    assert _named("sum by (part) (rate(saltroute_no_such_thing_total[5m]))") == {"saltroute_no_such_thing_total"}
    assert "saltroute_no_such_thing_total" not in page
    assert "saltroute_cause_seconds_total" in page
    assert page["saltroute_cause_seconds_total"] == {"part"}


def test_parts_in_rules_are_parts() -> None:
    for expression in _expressions():
        for names in re.findall(r'part=~?"([^"]*)"', expression):
            assert set(names.split("|")) <= set(PARTS)


def _reasons() -> set[str]:
    """Why a quota may refuse: every text that the code which refuses gives to ``why``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(quotas))):
        given = node.value if isinstance(node, ast.Assign) and "why" in ast.unparse(node.targets[0]) else None
        given = node.value if isinstance(node, ast.keyword) and node.arg == "why" else given
        if given is not None:
            found |= {one.value for one in ast.walk(given) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return found


def test_quotas_have_panels_and_a_rule_for_each_reason_of_a_refusal() -> None:
    assert _reasons() == {"limit", "slice", "share"}
    in_rules = {one for rule in _rules() for found in re.findall(r'why=~?"([^"]*)"', rule["expr"]) for one in found.split("|")}
    assert in_rules == _reasons()
    panels = [target["expr"] for panel in _dashboard()["panels"] for target in panel["targets"]]
    for metric in ("saltroute_quota_refused_total", "saltroute_quota_lost", "saltroute_quota_exchanges_total"):
        assert any(metric in expression for expression in panels), metric
    assert any("saltroute_quota_lost" in rule["expr"] for rule in _rules())


def test_no_exemplars_leave_the_router() -> None:
    source = "".join(path.read_text() for path in Path(DEPLOY.parent / "routing/dataplane").rglob("*.py"))
    assert "exemplar=" not in source


def test_rules_and_panels_are_whole() -> None:
    names = [rule["alert"] for rule in _rules()]
    assert len(names) == len(set(names))
    for rule in _rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    ids = [panel["id"] for panel in _dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    assert _dashboard()["templating"]["list"][0]["type"] == "datasource"


@pytest.mark.parametrize("name", ["grafana/routers.json", "prometheus/alerts.yaml", "prometheus/scrape.yaml"])
def test_nothing_names_this_installation(name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert "/work" not in text
    assert "http://" not in text
