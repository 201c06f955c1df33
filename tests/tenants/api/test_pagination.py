"""Lists by cursor: every row once, whatever happens meanwhile."""

from __future__ import annotations

import base64

import pytest
from django.utils import timezone

from tenants.core.roles import Role
from tenants.models import ApiKey
from tests.tenants.houses import Api, House


def _walk(api: Api, path: str, limit: int) -> list[str]:
    names, cursor = [], ""
    for _ in range(50):
        answer = api.get(f"{path}?limit={limit}{cursor}").json()
        names += [row.get("name", row.get("path")) for row in answer["results"]]
        if answer["next"] is None:
            return names
        cursor = f"&cursor={answer['next']}"
    raise AssertionError("the list does not end")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 200])
def test_every_row_comes_once_also_where_times_are_equal(acorn: House, limit: int) -> None:
    """Seven keys, all created at the same moment: ties go by id."""
    names = {acorn.key(f"k{number}").key.name for number in range(7)}
    with acorn.scope():
        ApiKey.objects.filter(kind="inference").update(created_at=timezone.now())
    walked = _walk(acorn.api(), "keys", limit)
    assert len(walked) == 7
    assert set(walked) == names


def test_rows_added_meanwhile_shift_nothing(acorn: House) -> None:
    """A new key appears on a new first page, and repeats or hides none of the old ones."""
    for number in range(4):
        acorn.key(f"k{number}")
    api = acorn.api()
    first = api.get("keys?limit=2").json()
    acorn.key("late")
    rest = api.get(f"keys?limit=2&cursor={first['next']}").json()
    assert [row["name"] for row in first["results"] + rest["results"]] == ["k3", "k2", "k1", "k0"]


def test_a_list_by_name_pages_by_name(acorn: House) -> None:
    """The root has the empty path and comes first."""
    api = acorn.api()
    for path in ("b", "a", "a/c"):
        api.post("scopes", {"path": path})
    assert _walk(api, "scopes", 2) == ["", "a", "a/c", "b"]


@pytest.mark.parametrize("limit", ["0", "201", "-1", "x", "1.5", "", "\u0663", "9" * 5000])
def test_a_malformed_limit_is_refused(acorn: House, limit: str) -> None:
    """1 to 200."""
    answer = acorn.api().get(f"keys?limit={limit}")
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "limit")


@pytest.mark.parametrize(
    "text", [b"[]", b'["2026-01-01T00:00:00Z"]', b'["x", "y"]', b"[null, null]", b'["2026-01-01T00:00:00Z", "y"]', b"{}", b'[["a"], 1]', b"\xff"]
)
def test_a_foreign_cursor_is_refused(acorn: House, text: bytes) -> None:
    """400, field cursor; never a 500."""
    for cursor in (base64.urlsafe_b64encode(text).decode().rstrip("="), "***", "é", "x" * 5000):
        answer = acorn.api().get(f"keys?cursor={cursor}")
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, "cursor")


def test_a_cursor_of_another_tenant_shows_nothing_of_it(acorn: House, birch: House) -> None:
    """It only moves within one's own rows."""
    for number in range(3):
        birch.key(f"b{number}")
    cursor = birch.api().get("keys?limit=1").json()["next"]
    acorn.key("mine")
    assert [row["name"] for row in acorn.api(Role.VIEWER).get(f"keys?cursor={cursor}").json()["results"]] in ([], ["mine"])
