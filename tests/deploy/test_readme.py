"""The README's declaration and its simulated engines fit together, as printed."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from deploy.local.options import REPOSITORY
from routing.simulator.__main__ import _parser as simulator

README = (REPOSITORY / "README.md").read_text()


def _declared() -> str:
    found = re.search(r"```yaml\n(# mine\.yaml\n.+?)```", README, re.DOTALL)
    assert found
    return found[1]


def _urls() -> list[str]:
    endpoint: dict[str, Any] = yaml.safe_load(_declared())["tenants"][0]["endpoints"][0]
    return [one["url"] for one in endpoint["replicas"]]


def test_each_declared_replica_is_a_simulated_process_of_its_own() -> None:
    """So that the advice to stop one alone holds; their ports of events and replays do not meet."""
    found = re.search(r"    for n in ([0-9 ]+); do\n +\.venv/bin/python -m routing\.simulator (.+?) &\n    done\n", README, re.DOTALL)
    assert found
    started = [simulator().parse_args(found[2].replace("\\\n", " ").replace("$n", number).split()) for number in found[1].split()]
    assert [f"http://127.0.0.1:{one.port}" for one in started] == _urls()
    assert [one.replicas for one in started] == [1] * len(started)
    ports = [port for one in started for port in (one.port, one.kv_port, one.replay_port)]
    assert len(set(ports)) == len(ports) == 6
    assert {one.model for one in started} == {"my-model"}


@pytest.mark.django_db
def test_the_declaration_can_be_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the demo's files in place of the reader's own, as it says for simulated engines."""
    shown = re.search(r"`(tokenizer: \{path: deploy/demo/[^`]+\})`", README)
    assert shown
    text, count = re.subn(r"tokenizer: \{[^}]+\}", shown[1].replace("deploy/demo/", f"{REPOSITORY}/deploy/demo/"), _declared())
    assert count == 1
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    monkeypatch.setenv("MY_KEY", "sk-sr-a-key-of-your-own-choice")
    out = io.StringIO()
    call_command("apply", "-f", str(file), "--dry-run", stdout=out)
    said = out.getvalue()
    assert all(url in said or f"/{name}" in said for name, url in zip("ab", _urls(), strict=True)), said


def test_it_names_the_engine_version_that_everything_was_tried_on() -> None:
    recorded = {path.name.removeprefix("vllm-") for path in (REPOSITORY / "tests/vectors").glob("vllm-*")}
    assert recorded
    assert all(f"vLLM {version}" in README for version in recorded)
