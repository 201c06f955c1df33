"""Every way in which engines say "error", and whose fault it is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.verdict import MAX_MEMBER_BYTES, Kind, Said, judge, kind_of, may_pass, misses_model, parse, safe_message


def said(document: Any) -> Said | None:
    return parse(msgspec.json.encode(document))


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["error", "object", "type", "code", "status", "message", "param", "choices", "usage", "finish_reason"])
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner)


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
    verdict = judge(200, said(payload))
    assert (verdict.kind, verdict.status) == (kind, status)


@pytest.mark.parametrize("message", ["at 10.0.0.7:8000", "KEY be-secret", "<html><body>", "<!DOCTYPE html>", "", 7, None])
def test_messages_with_something_of_ours_in_them_are_not_shown(message: Any) -> None:
    assert safe_message({"message": message}, ["10.0.0.7:8000", "be-secret", ""]) is None


def test_messages_are_bounded() -> None:
    assert len(safe_message({"message": "x" * 10_000}, []) or "") == 2000


def test_only_a_shaped_and_safe_body_passes_as_it_is() -> None:
    good = msgspec.json.encode({"error": {"message": "too long", "code": 400}})
    assert may_pass(good, judge(400, parse(good)), ["10.0.0.7"])
    for body in (
        msgspec.json.encode({"detail": "Not Found"}),
        msgspec.json.encode({"object": "error", "message": "x"}),
        msgspec.json.encode({"error": {"message": "x", "debug": "10.0.0.7"}}),
        msgspec.json.encode({"error": {"message": "x" * 70_000}}),
    ):
        assert not may_pass(body, judge(400, parse(body)), ["10.0.0.7"])


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
    assert misses_model(judge(status, said(payload)), "ad1") == misses


@pytest.mark.parametrize(("code", "status"), [("429", 429), ("\u00b2", 500), ("9" * 5000, 500), ("\u0664\u0662\u0669", 500), ("0429", 500)])
def test_a_code_that_is_no_status_is_a_failure_of_the_engine(code: str, status: int) -> None:
    """Digits that no status is written with, or too many of them, are no mistake of ours."""
    assert judge(200, said({"error": {"message": "m", "code": code}})).status == status


LITTLE = b"[]," * 300_000 + b"[]"
COUNTS = b'"usage":{"prompt_tokens":7}'


@pytest.mark.parametrize(
    ("data", "usage"),
    [
        (b'{"choices":[],%s,"x":[%s]}' % (COUNTS, LITTLE), {"prompt_tokens": 7}),
        (b'{"choices":[%s],%s}' % (LITTLE, COUNTS), {"prompt_tokens": 7}),
        (b'{"choices":[],"usage":[%s]}' % LITTLE, None),
        (b'{"choices":[],%s,"kv_transfer_params":[%s]}' % (COUNTS, LITTLE), {"prompt_tokens": 7}),
        (b'{"error":{"code":400,"message":[%s]},%s}' % (LITTLE, COUNTS), {"prompt_tokens": 7}),
    ],
    ids=["beside", "choices", "usage", "transfer", "error"],
)
def test_what_an_answer_holds_beside_what_is_read_is_not_built(data: bytes, usage: object) -> None:
    """900 kB that would be 300,000 lists, made on the event loop. The control builds them."""

    def read() -> None:
        found = parse(data)
        assert found is not None
        assert (found.usage, found.transfer) == (usage, None)
        judge(200, found)

    assert _peak_bytes(read) < 4 * len(data)
    assert _peak_bytes(lambda: msgspec.json.decode(data)) > 10 * len(data)


def _peak_bytes(read: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_error_is_one_however_long_it_is() -> None:
    """Engines repeat what they were sent: the code counts, a text that is too long is not shown. The control fits."""
    for size, message in ((MAX_MEMBER_BYTES, None), (1000, "x" * 1000)):
        verdict = judge(200, said({"error": {"message": "x" * size, "code": 400, "input": "y" * size}}))
        assert (verdict.kind, verdict.status, safe_message(verdict.error, [])) == ("client", 400, message)
        assert judge(200, said({"error": "x" * size})).kind == "replica"


@pytest.mark.parametrize("bad", [b"\xff", "é".encode()[:1], "😀".encode()[:3], b"\xed\xa0\x80"])
@pytest.mark.parametrize("before", [0, 64 * 1024 - 1, 200_000])
def test_an_answer_whose_text_is_none_is_no_answer(bad: bytes, before: int) -> None:
    """In what is skipped too, wherever a step of the look ends. The control is text of as many bytes."""
    frame = b'{"choices":[{"text":"%s%s%s"}]}'
    assert parse(frame % (b"a" * before, bad, b"a" * 100)) is None
    assert parse(frame % (b"a" * before, "é😀".encode(), b"a" * 100)) is not None


@pytest.mark.parametrize(
    ("choices", "has"),
    [(b"[]", False), (b"null", False), (b"[ ]", False), (b"[{}]", True), (b"[%s]" % LITTLE, True), (b'[{"text":"%s"}]' % (b"a" * 2_000_000), True)],
)
def test_an_answer_with_choices_has_some_however_many(choices: bytes, has: bool) -> None:
    assert (found := parse(b'{"choices":%s}' % choices)) is not None
    assert found.has_choices == has


@given(st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3), _nested))
def test_no_document_is_too_odd_to_be_judged(document: Any) -> None:
    found = said(document)
    assert (found is not None) == isinstance(document, dict)
    assert judge(200, found).kind in ("ok", "client", "busy", "replica", "aborted")
    assert judge(500, found).kind == "replica"
