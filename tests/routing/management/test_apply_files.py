"""``manage.py apply`` on the files of a model: what is wrong with one is said once, at the field of the declaration that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.artifacts import SMALL
from tests.routing.management.applying import complaints

pytestmark = pytest.mark.django_db
NOT_HELD = "5" * 64


def _apply(folder: Path, *models: str) -> list[str]:
    """Declare one tenant with an endpoint for each model; the lines on standard error."""
    file = folder / "f.yaml"
    names = [f"m{number}" for number in range(len(models))]
    declared = "".join(f"      - {{name: {name}, revision: r1, tokenizer: {model}}}\n" for name, model in zip(names, models, strict=True))
    served = "".join(f"      - {{name: e-{name}, model: {name}, pool: p}}\n" for name in names)
    file.write_text(f"tenants:\n  - slug: acme\n    pools: [{{name: p}}]\n    models:\n{declared}    endpoints:\n{served}")
    return complaints(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a declaration, with files beside it."""
    (tmp_path / "tokenizer.json").write_bytes(SMALL)
    (tmp_path / "good.jinja").write_text("{{ messages }}")
    (tmp_path / "broken.jinja").write_text("{% for x in %}")
    (tmp_path / "empty.json").write_text("")
    return tmp_path


def _problems(lines: list[str]) -> list[str]:
    """Where each line says that something is wrong."""
    return [line.split(": ")[1] for line in lines if line.startswith("f.yaml:")]


def test_a_broken_file_is_said_once_at_its_own_field(folder: Path) -> None:
    """Also where two models name it; neither they nor their endpoints are at fault beside it. With good files all is taken."""
    broken = "{path: tokenizer.json, chat_template: broken.jinja}"
    lines = _apply(folder, broken, broken)
    assert _problems(lines) == ["tenants[0].models[0].tokenizer.chat_template"]
    assert lines[0].startswith("f.yaml:5: ")
    assert "This chat template does not compile" in lines[0]
    assert _problems(_apply(folder, "{path: empty.json, chat_template: broken.jinja}")) == [
        "tenants[0].models[0].tokenizer.chat_template",
        "tenants[0].models[0].tokenizer.path",
    ]
    assert _apply(folder, "{path: tokenizer.json, chat_template: good.jinja}", "{path: tokenizer.json}") == []


def test_a_digest_that_is_not_held_is_said_at_its_own_field(folder: Path) -> None:
    """And what services call otherwise than the file does is given the file's name."""
    (line, *_) = _apply(folder, f"{{sha256: {NOT_HELD!r}}}")
    assert line == "f.yaml:5: tenants[0].models[0].tokenizer.sha256: You hold no tokenizer with this SHA-256; upload it first."
    lines = _apply(folder, f"{{path: tokenizer.json, chat_template_sha256: {NOT_HELD!r}}}")
    assert _problems(lines) == ["tenants[0].models[0].tokenizer.chat_template_sha256"]
    long = "t" * 201
    assert _problems(_apply(folder, f"{{path: tokenizer.json, revision: {long}}}")) == ["tenants[0].models[0].tokenizer.revision"]
    assert _problems(_apply(folder, f"{{path: tokenizer.json, revision: t, chat_template_revision: {long}}}")) == [
        "tenants[0].models[0].tokenizer.chat_template_revision"
    ]
