"""What Django's own check of a deployment says of these settings, and what cookies and headers they make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from deploy.local.options import REPOSITORY

_COOKIES = """
import django, json; django.setup()
from django.conf import settings as s
print(json.dumps({n: getattr(s, n) for n in (
    "SESSION_COOKIE_NAME", "SESSION_COOKIE_SECURE", "SESSION_COOKIE_HTTPONLY", "SESSION_COOKIE_SAMESITE", "CSRF_COOKIE_SECURE",
    "CSRF_COOKIE_SAMESITE", "SECURE_HSTS_SECONDS", "SECURE_REFERRER_POLICY", "X_FRAME_OPTIONS", "SESSION_COOKIE_AGE", "SESSION_IDLE_S", "DEBUG",
    "CSRF_TRUSTED_ORIGINS")}))
"""


def _python(*argv: str, **extra: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SALTROUTE_ROOT")}
    env |= {"DJANGO_SETTINGS_MODULE": "settings.django", **extra}
    return subprocess.run([sys.executable, *argv], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=120, check=False)


def _settings(**extra: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_python("-c", _COOKIES, **extra).stdout)
    return found


def test_the_check_of_a_deployment_is_clean() -> None:
    """With TLS before it, warnings count; silenced are three that another host or the proxy decides, each with its reason in the settings."""
    done = _python("manage.py", "check", "--deploy", "--fail-level", "WARNING", SALTROUTE_HTTPS="1")
    assert (done.returncode, done.stdout.splitlines()[:1]) == (0, ["System check identified no issues (3 silenced)."]), done.stderr


def test_the_check_would_say_something() -> None:
    """The control: without TLS it names the cookies."""
    done = _python("manage.py", "check", "--deploy", "--fail-level", "WARNING", SALTROUTE_HTTPS="0")
    assert done.returncode == 1
    assert "security.W012" in done.stderr


def test_cookies_and_headers_behind_tls() -> None:
    found = _settings(SALTROUTE_HTTPS="1", SALTROUTE_CONSOLE_URL="https://console.example/x")
    assert found == {
        "SESSION_COOKIE_NAME": "__Host-sessionid",
        "SESSION_COOKIE_SECURE": True,
        "SESSION_COOKIE_HTTPONLY": True,
        "SESSION_COOKIE_SAMESITE": "Lax",
        "CSRF_COOKIE_SECURE": True,
        "CSRF_COOKIE_SAMESITE": "Lax",
        "SECURE_HSTS_SECONDS": 365 * 86400,
        "SECURE_REFERRER_POLICY": "same-origin",
        "X_FRAME_OPTIONS": "DENY",
        "SESSION_COOKIE_AGE": 12 * 3600,
        "SESSION_IDLE_S": 3600,
        "DEBUG": False,
        "CSRF_TRUSTED_ORIGINS": ["https://console.example"],
    }


def test_without_tls_no_promise_of_it_is_made() -> None:
    """A browser that was told of HSTS could not open `make up` any more."""
    found = _settings(SALTROUTE_HTTPS="0", SALTROUTE_HSTS_S="600")
    assert (found["SECURE_HSTS_SECONDS"], found["SESSION_COOKIE_SECURE"], found["SESSION_COOKIE_NAME"]) == (0, False, "sessionid")
    assert _settings(SALTROUTE_HTTPS="1", SALTROUTE_HSTS_S="600")["SECURE_HSTS_SECONDS"] == 600
