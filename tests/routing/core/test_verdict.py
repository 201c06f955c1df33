"""Every way in which engines say "error", and whose fault it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routing.core.verdict import MAX_VALUES, Kind, judge, kind_of, may_pass, misses_model, parse, safe_message


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "ok"), (201, "ok"), (301, "replica"), (400, "client"), (401, "replica"), (403, "replica"), (404, "replica"), (408, "replica"),
     (413, "client"), (422, "client"), (429, "busy"), (500, "replica"), (503, "replica"), (101, "replica")],
)  # fmt: skip
def test_whose_fault_a_status_is(status: int, kind: Kind) -> None:
    assert kind_of(status) == kind


@pytest.mark.parametrize(
    ("payload", "kind", "status"),
    [
        ({"choices": []}, "ok", 200),
        ({"error": None, "choices": []}, "ok", 200),
        ({"error": {"code": 400}}, "client", 400),
        ({"error": {"code": "422"}}, "client", 422),
        ({"error": {"code": 503}}, "replica", 503),
        ({"error": {"code": 429}}, "busy", 429),
        ({"error": {"type": "BadRequestError"}}, "client", 400),
        ({"error": {"type": "invalid_request_error", "code": "context_length_exceeded"}}, "client", 400),
        ({"error": {"message": "boom"}}, "replica", 500),
        ({"error": "Unauthorized"}, "replica", 500),
        ({"object": "error", "code": 400, "message": "too long"}, "client", 400),
        ({"error": {"code": True}}, "replica", 500),
        ({"choices": [{"finish_reason": "abort"}]}, "aborted", 503),
        ({"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}, "aborted", 503),
        (None, "ok", 200),
        ([], "ok", 200),
    ],
)
def test_an_error_under_200_is_found(payload: Any, kind: Kind, status: int) -> None:
    verdict = judge(200, payload)
    assert (verdict.kind, verdict.status) == (kind, status)


@pytest.mark.parametrize("message", ["at 10.0.0.7:8000", "KEY be-secret", "<html><body>", "<!DOCTYPE html>", "", 7, None])
def test_messages_with_something_of_ours_in_them_are_not_shown(message: Any) -> None:
    assert safe_message({"message": message}, ["10.0.0.7:8000", "be-secret", ""]) is None


def test_messages_are_bounded() -> None:
    assert len(safe_message({"message": "x" * 10_000}, []) or "") == 2000


def test_only_a_shaped_and_safe_body_passes_as_it_is() -> None:
    good = msgspec.json.encode({"error": {"message": "too long", "code": 400}})
    assert may_pass(good, judge(400, msgspec.json.decode(good)), ["10.0.0.7"])
    for body in (
        msgspec.json.encode({"detail": "Not Found"}),
        msgspec.json.encode({"object": "error", "message": "x"}),
        msgspec.json.encode({"error": {"message": "x", "debug": "10.0.0.7"}}),
        msgspec.json.encode({"error": {"message": "x" * 70_000}}),
    ):
        assert not may_pass(body, judge(400, msgspec.json.decode(body)), ["10.0.0.7"])


@pytest.mark.parametrize(
    ("status", "payload", "misses"),
    [
        (
            404,
            {"error": {"message": "The model `ad1` does not exist. Valid aliases: tiny.", "type": "NotFoundError", "param": "model", "code": 404}},
            True,
        ),
        (404, {"type": "error", "error": {"type": "NotFoundError", "message": "The model `ad1` does not exist."}}, True),
        (404, {"error": {"message": "no such model", "code": "model_not_found"}}, True),
        (404, {"error": {"message": "Response `ad1` does not exist.", "type": "NotFoundError", "param": "response_id", "code": 404}}, False),
        (404, {"type": "error", "error": {"type": "NotFoundError", "message": "The model `other` does not exist."}}, False),
        (404, {"detail": "Not Found"}, False),
        (400, {"error": {"message": "The model `ad1` does not exist.", "param": "model"}}, False),
        (200, {"choices": []}, False),
    ],
)
def test_only_an_engine_that_names_our_model_misses_it(status: int, payload: dict[str, Any], misses: bool) -> None:
    assert misses_model(judge(status, payload), "ad1") == misses


@pytest.mark.parametrize(("code", "status"), [("429", 429), ("\u00b2", 500), ("9" * 5000, 500), ("\u0664\u0662\u0669", 500), ("0429", 500)])
def test_a_code_that_is_no_status_is_a_failure_of_the_engine(code: str, status: int) -> None:
    """Digits that no status is written with, or too many of them, are no mistake of ours."""
    assert judge(200, {"error": {"message": "m", "code": code}}).status == status


def test_an_answer_of_too_many_values_is_none_before_it_is_built() -> None:
    """64 MiB of empty objects would be more than a gigabyte. The controls: one sign less is read, and so is a text of as many bytes."""
    start = b'{"x":['
    fits = start + b",".join([b"1"] * (MAX_VALUES - 1)) + b"]}"
    assert isinstance(parse(fits), dict)
    assert parse(fits[:-2] + b",1]}") is None
    assert isinstance(parse(b'{"x":"' + bytes(b"a" * 2 * MAX_VALUES) + b'"}'), dict)
