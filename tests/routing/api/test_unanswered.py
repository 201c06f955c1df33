"""What no view answered: JSON below /api/, a page elsewhere, nothing of the mistake in either."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path


def broken(request: HttpRequest) -> HttpResponse:
    """A mistake of ours."""
    raise RuntimeError("the secret of the mistake")


urlpatterns = [path("api/v1/broken", broken), path("broken", broken), path("", include("settings.urls"))]
handler400 = "routing.api.unanswered.bad_request"
handler500 = "routing.api.unanswered.server_error"


@pytest.fixture
def client(settings: Any) -> Client:
    settings.ROOT_URLCONF = __name__
    return Client(raise_request_exception=False)


def test_the_urls_name_these_handlers() -> None:
    """The ones tested here are the product's."""
    from settings import urls

    assert (urls.handler400, urls.handler500) == (handler400, handler500)


def test_a_mistake_below_the_api_is_json(client: Client) -> None:
    answer = client.get("/api/v1/broken")
    assert answer.status_code == 500
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "private, no-store"
    assert (answer.json()["error"]["code"], answer.json()["error"]["field"]) == ("internal_error", None)
    assert b"mistake" not in answer.content


def test_a_mistake_elsewhere_is_a_page(client: Client) -> None:
    answer = client.get("/broken")
    assert answer.status_code == 500
    assert answer.headers["Content-Type"].startswith("text/html")
    assert b"Something went wrong" in answer.content
    assert b"mistake" not in answer.content


@pytest.mark.parametrize(("url", "kind"), [("/api/v1/keys", "application/json"), ("/login", "text/html; charset=utf-8")])
def test_a_foreign_host_is_refused_in_the_same_shapes(client: Client, url: str, kind: str) -> None:
    answer = client.get(url, headers={"Host": "evil.example"})
    assert (answer.status_code, answer.headers["Content-Type"]) == (400, kind)
