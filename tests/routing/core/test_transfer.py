"""What a prefill engine hands over: what a real one said is believed, anything else is not."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import body as bodies
from routing.core import transfer
from routing.core.engines import ENGINES

SAID: dict[str, Any] = {  # by vLLM 0.32.0 with NixlConnector
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3, 4, 5, 6, 7]],
    "remote_engine_id": "915884a1-65f9-4a56-b363-65ccf78b5ace",
    "remote_request_id": "chatcmpl-pd-1-81bc3cf5",
    "remote_host": "127.0.0.1",
    "remote_port": 5821,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 207,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
HOSTS = ("127.0.0.1",)


def believed(value: object, hosts: tuple[str, ...] = HOSTS) -> Any:
    return msgspec.json.decode(transfer.believe(value, hosts=hosts, request_id="pd-1"))


def test_what_a_real_engine_said_goes_on_unchanged() -> None:
    assert believed(SAID) == SAID


def test_unknown_fields_do_not_go_on() -> None:
    assert believed({**SAID, "callback_url": "http://10.0.0.1/", "cache_salt": "x"}) == SAID


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"remote_host": "10.0.0.9"}, "host"),
        ({"remote_host": "metadata.google.internal"}, "host"),
        ({"remote_host": ""}, "host"),
        ({"remote_host": 2130706433}, "shape"),
        ({"remote_port": 22}, "port"),
        ({"remote_port": 65536}, "port"),
        ({"remote_port": -1}, "port"),
        ({"remote_port": True}, "shape"),
        ({"remote_port": "5821"}, "shape"),
        ({"do_remote_decode": True}, "direction"),
        ({"do_remote_prefill": False}, "direction"),
        ({"remote_request_id": "chatcmpl-pd-2-81bc3cf5"}, "request"),  # somebody else's prompt
        ({"remote_request_id": "pd-1\n"}, "request"),
        ({"remote_engine_id": "a b"}, "request"),
        ({"remote_engine_id": ""}, "request"),
        ({"remote_block_ids": []}, "blocks"),
        ({"remote_block_ids": [[-1]]}, "blocks"),
        ({"remote_block_ids": [[0] * 65_537]}, "blocks"),
        ({"remote_block_ids": [[1]] * 65}, "blocks"),
        ({"remote_block_ids": [1, 2]}, "shape"),
        ({"transfer_mode": "push"}, "mode"),
        ({"remote_num_tokens": 0}, "tokens"),
        ({"remote_prefill_cached_tokens": 208}, "tokens"),  # more than there are: forged hits
        ({"remote_prefill_cached_tokens": 99999}, "tokens"),
        ({"remote_prefill_cached_tokens": -1}, "tokens"),
        ({"tp_size": 0}, "shape"),
        ({"remote_blocks_expiry_time": -5.0}, "shape"),
        ({"remote_blocks_expiry_time": "soon"}, "shape"),
    ],
)
def test_anything_else_is_not_believed(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(transfer.TransferError) as refused:
        believed({**SAID, **changes})
    assert refused.value.reason == reason


@pytest.mark.parametrize(("value", "reason"), [(None, "absent"), ({}, "shape"), ([], "shape"), ("x", "shape"), (7, "shape")])
def test_nothing_and_no_object_are_not_believed(value: object, reason: str) -> None:
    with pytest.raises(transfer.TransferError) as refused:
        believed(value)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("said", "hosts", "known"),
    [
        ("p-0.pool", ("p-0.pool", "10.1.2.3"), True),
        ("P-0.Pool", ("p-0.pool", "10.1.2.3"), True),
        ("10.1.2.3", ("p-0.pool", "10.1.2.3"), True),
        ("::ffff:10.1.2.3", ("p-0.pool", "10.1.2.3"), True),
        ("[fd00::1]", ("fd00:0::1",), True),
        ("10.1.2.4", ("p-0.pool", "10.1.2.3"), False),
        ("p-1.pool", ("p-0.pool", "10.1.2.3"), False),
    ],
)
def test_the_host_is_the_engines_own_by_name_or_by_address(said: str, hosts: tuple[str, ...], known: bool) -> None:
    if known:
        assert believed({**SAID, "remote_host": said}, hosts)["remote_host"] == said
        return
    with pytest.raises(transfer.TransferError):
        believed({**SAID, "remote_host": said}, hosts)


@given(
    st.dictionaries(
        st.sampled_from(sorted(SAID)), st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=3)
    )
)
def test_whatever_passes_names_the_engines_own_host_and_this_request(changes: dict[str, Any]) -> None:
    value = {**copy.deepcopy(SAID), **changes}
    try:
        passed = believed(value)
    except transfer.TransferError:
        return
    assert (passed["remote_host"], passed["do_remote_prefill"], passed["do_remote_decode"]) == ("127.0.0.1", True, False)
    assert "pd-1" in passed["remote_request_id"]
    assert set(passed) == set(SAID)


# ---- bodies of the two calls -------------------------------------------------------------------------------------------


def edited(sent: dict[str, Any], *, engine: str = "vllm", first: bool = True, **more: Any) -> dict[str, Any]:
    body = bodies.read(msgspec.json.encode(sent))
    if first:
        written, left_out = transfer.of_prefill(body.value)
        more = {"written": written, "left_out": left_out, "transfer": transfer.PREFILL}
    out: dict[str, Any] = msgspec.json.decode(bodies.edit(body, engine=ENGINES[engine], salt="sr1-ours", served_model="m", **more))
    return out


def test_the_first_call_asks_for_one_token_at_once_and_the_second_is_the_request_as_it_was() -> None:
    sent = {
        "model": "x",
        "prompt": "p",
        "max_tokens": 300,
        "min_tokens": 20,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "kv_transfer_params": {"do_remote_prefill": True, "remote_prefill_cached_tokens": 99999},
        "cache_salt": "theirs",
    }
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    assert edited(sent) == {
        "model": "m",
        "prompt": "p",
        "max_tokens": 1,
        "stream": False,
        "temperature": 0.5,
        "kv_transfer_params": asked,
        "cache_salt": "sr1-ours",
    }
    second = edited(sent, first=False, transfer=msgspec.json.encode(SAID))
    assert second == {**sent, "model": "m", "kv_transfer_params": SAID, "cache_salt": "sr1-ours"}
    assert "kv_transfer_params" not in edited(sent, first=False)


def test_the_newer_name_of_the_bound_is_set_where_it_was_sent() -> None:
    assert edited({"max_completion_tokens": 9})["max_completion_tokens"] == 1
    assert "max_completion_tokens" not in edited({"max_tokens": 9})


@pytest.mark.parametrize("family", sorted(set(ENGINES) - {"vllm"}))
def test_an_engine_that_knows_of_no_transfer_is_never_told_of_one(family: str) -> None:
    with pytest.raises(bodies.SaltError):
        edited({"model": "x"}, engine=family, first=False, transfer=b"{}")


@pytest.mark.parametrize("transfer_params", [None, b'{"a":2}'])
def test_bytes_that_carry_another_transfer_than_ours_are_not_sent(transfer_params: bytes | None) -> None:
    outgoing = b'{"cache_salt":"sr1-ours","kv_transfer_params":{"a":1}}'
    bodies.check_salt(outgoing, engine=ENGINES["vllm"], salt="sr1-ours", members=2, transfer=b'{"a":1}')
    with pytest.raises(bodies.SaltError):
        bodies.check_salt(outgoing, engine=ENGINES["vllm"], salt="sr1-ours", members=2, transfer=transfer_params)


@pytest.mark.parametrize(
    ("body", "answers", "reads", "expected"),
    [({}, 1, True, True), ({}, 2, True, False), ({}, 1, False, False), ({"use_beam_search": True}, 1, True, False)],
)
def test_what_cannot_be_computed_elsewhere_is_not(body: dict[str, Any], answers: int, reads: bool, expected: bool) -> None:
    assert transfer.can_go(body, answers=answers, reads_cache=reads) is expected
