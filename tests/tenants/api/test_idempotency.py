"""Idempotency-Key: a repeated request does not act twice and shows no secret twice."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tenants.models import ApiKey, IdempotencyRecord
from tests.tenants.houses import Api, House, house


def test_a_repeat_is_given_the_first_answer_without_the_secret(acorn: House) -> None:
    """Same id, marked as replayed, no secret; nothing stored holds it."""
    api = acorn.api()
    first = api.post("keys", {"name": "ci"}, Idempotency_Key="k-1")
    again = api.post("keys/", {"name": "ci"}, Idempotency_Key="k-1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == {**first.json(), "secret": None}
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    with acorn.scope():
        assert ApiKey.objects.filter(kind="inference").count() == 1
        assert first.json()["secret"] not in str(IdempotencyRecord.objects.values_list())


def test_another_request_under_the_same_key_is_refused(acorn: House) -> None:
    """Another body, another route, another caller: 409 that names the header; nothing happens."""
    api = acorn.api()
    api.post("keys", {"name": "ci"}, Idempotency_Key="k-1")
    acorn.key("other")
    refused = [
        api.post("keys", {"name": "other"}, Idempotency_Key="k-1"),
        api.post("tokens", {"name": "ci", "role": "viewer"}, Idempotency_Key="k-1"),
        api.post("keys/other/rotate", Idempotency_Key="k-1"),
        Api(token=list(acorn.tokens.values())[2]).post("keys", {"name": "ci"}, Idempotency_Key="k-1"),
    ]
    assert [(answer.status_code, answer.json()["error"]["field"]) for answer in refused] == [(409, "Idempotency-Key")] * 4


def test_the_key_belongs_to_the_tenant(acorn: House, birch: House) -> None:
    """Two tenants may use the same one."""
    answers = [one.api().post("keys", {"name": "ci"}, Idempotency_Key="k-1") for one in (acorn, birch)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["id"] != answers[1].json()["id"]


def test_a_refused_request_uses_the_key_not_up(acorn: House) -> None:
    """Its record is rolled back with it: after the cause is gone the same request acts."""
    api = acorn.api()
    acorn.key("ci")
    assert api.post("keys", {"name": "ci"}, Idempotency_Key="k-1").status_code == 409
    api.delete("keys/ci")
    assert api.post("keys", {"name": "ci"}, Idempotency_Key="k-1").status_code == 201


def test_a_rotation_is_not_repeated(acorn: House) -> None:
    """A repeat after a time-out must not make the secret that was received useless."""
    acorn.key("ci")
    first, again = (acorn.api().post("keys/ci/rotate", Idempotency_Key="r-1").json() for _ in range(2))
    assert again == {**first, "secret": None}


def test_records_are_kept_for_a_day(acorn: House) -> None:
    """Then the key is free again, and the table does not grow for ever."""
    api = acorn.api()
    api.post("keys", {"name": "a"}, Idempotency_Key="k-1")
    with acorn.scope():
        IdempotencyRecord.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert api.post("keys", {"name": "b"}, Idempotency_Key="k-1").status_code == 201
    with acorn.scope():
        assert IdempotencyRecord.objects.count() == 1


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 201])
def test_a_malformed_key_is_refused(acorn: House, key: str) -> None:
    """1 to 200 visible ASCII characters."""
    answer = acorn.api().post("keys", {"name": "ci"}, Idempotency_Key=key)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "Idempotency-Key")


@pytest.mark.django_db(transaction=True)
def test_of_five_at_once_one_acts() -> None:
    """Five connections, one key: the same id five times, one secret, one row."""
    acorn = house("acorn")
    start, answers = threading.Barrier(5), []

    def ask() -> None:
        try:
            start.wait(timeout=20)
            answers.append(acorn.api().post("keys", {"name": "ci"}, Idempotency_Key="k-1"))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert [answer.status_code for answer in answers] == [201] * 5
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len([answer for answer in answers if answer.json()["secret"]]) == 1
    with acorn.scope():
        assert ApiKey.objects.filter(kind="inference").count() == 1
