"""Headers on every answer, and nothing in our pages that they would have to allow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

import console
from tests.console.rows import Town

TEMPLATES = sorted((Path(console.__file__).parent / "templates").rglob("*.html"))


def _policy(header: str) -> dict[str, str]:
    return dict(part.strip().split(" ", 1) for part in header.split(";"))


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/login", "/t/acorn", "/t/acorn/keys", "/t/nowhere"])
def test_every_page_allows_only_what_we_ship(town: Town, path: str) -> None:
    response = town.owner.get(path)
    policy = _policy(response.headers["Content-Security-Policy"])
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == policy["connect-src"] == "'self'"
    assert policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in response.headers["Content-Security-Policy"]
    assert response.headers["X-Frame-Options"] == "DENY"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "same-origin"
    assert response.headers["Cache-Control"] == "private, no-store"


@pytest.mark.django_db
def test_the_policy_also_stands_on_a_redirect_and_a_refused_form() -> None:
    for response in (Client().get("/t/acorn"), Client(enforce_csrf_checks=True).post("/login")):
        assert "script-src 'self'" in response.headers["Content-Security-Policy"]


@pytest.mark.django_db
def test_browsers_are_told_to_stay_with_tls_behind_it_alone(settings: Settings) -> None:
    """The proxy ends TLS, so Django's own middleware sees none and would send nothing."""
    assert "Strict-Transport-Security" not in Client().get("/login").headers
    settings.HTTPS, settings.SECURE_HSTS_SECONDS = True, 600
    for path in ("/login", "/t/nowhere", "/api/v1/me"):
        assert Client().get(path).headers["Strict-Transport-Security"] == "max-age=600"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_inline_script_or_style_or_trusts_a_value(template: Path) -> None:
    text = template.read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"<style|\sstyle\s*=|\son[a-z]+=[\"']|javascript:|hx-on|hx-vals=[\"']js:", text)
    assert not re.search(r"\|\s*safe\b|autoescape off|mark_safe", text)


def test_there_are_templates() -> None:
    assert len(TEMPLATES) > 15
