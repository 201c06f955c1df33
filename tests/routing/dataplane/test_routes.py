"""The README's list of what "OpenAI-compatible" covers is the list of routes."""

from __future__ import annotations

import re

import pytest

from deploy.local.options import REPOSITORY
from routing.dataplane import routes
from routing.dataplane.errors import ApiError

COVERED = (REPOSITORY / "README.md").read_text().partition('What "OpenAI-compatible" covers:')[2].partition("\n## ")[0]


def test_the_readme_lists_every_route() -> None:
    assert set(re.findall(r"`(GET|POST) (/v1/[^`]+)`", COVERED)) == {(route.method, route.path) for route in routes.ROUTES}


@pytest.mark.parametrize(
    "path", ["embeddings", "responses", "files", "batches", "images/generations", "audio/speech", "moderations", "fine_tuning/jobs"]
)
def test_what_it_says_is_not_there_is_an_unknown_url(path: str) -> None:
    assert re.split(r"[/_]", path)[0] in COVERED
    assert routes.resolve("POST", "/v1/completions").route is routes.COMPLETIONS
    with pytest.raises(ApiError) as refused:
        routes.resolve("POST", f"/v1/{path}")
    assert (refused.value.status, refused.value.code) == (404, "unknown_url")
