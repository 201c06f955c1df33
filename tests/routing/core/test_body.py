"""A body is read one way only, and edited nowhere but where it is ours."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import body as bodies
from routing.core.body import BodyError, SaltError
from routing.core.engine import Engine
from routing.core.engines import ENGINES

SALT = "sr1-" + "x" * 43
VLLM = ENGINES["vllm"]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=6), inner, max_size=3),
    max_leaves=10,
)
names = st.sampled_from([*sorted(VLLM.stripped), "model", "stream_options", "vllm_xargs", "nvext", "messages", "user"]) | st.text(
    st.characters(codec="utf-8"), max_size=8
)


@given(st.dictionaries(names, values, max_size=8), st.sampled_from(sorted(ENGINES)))
def test_whatever_comes_in_our_salt_goes_out_once_and_the_rest_is_untouched(value: dict[str, Any], family: str) -> None:
    engine = ENGINES[family]
    raw = msgspec.json.encode(value)
    body = bodies.read(raw)
    out = bodies.edit(body, engine=engine, salt=SALT, served_model="m")
    pairs = msgspec.json.decode(out, type=dict[str, msgspec.Raw])
    assert (bytes(pairs[engine.salt_field]) == f'"{SALT}"'.encode()) if engine.salt_field else "cache_salt" not in pairs
    ours = {"model", "stream_options", *engine.stripped_inside, *engine.forced, engine.salt_field}
    for name, member in body.members.items():
        if name in engine.stripped:
            assert name not in pairs or name in ours
        elif name not in ours:
            assert bytes(pairs[name]) == bytes(member)
    kept = [name for name in body.members if name in pairs and name not in engine.stripped and name not in ours]
    assert [name for name in pairs if name in kept] == kept


@pytest.mark.parametrize("raw", [b'{"a":1,"a":1}', b'{"x":[{"y":{"a":1,"b":2,"a":3}}]}', b'{"a":1,"\\u0061":2}'])
def test_a_member_named_twice_is_named_in_the_refusal(raw: bytes) -> None:
    with pytest.raises(BodyError) as refused:
        bodies.read(raw)
    assert refused.value.param == "a"


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"1", b"{", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":01}', b'{"a":"\\ud83d"}', b'{"a":"\x01"}', b"\xff", b'{"a":1}x']
)
def test_what_two_parsers_could_read_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(BodyError):
        bodies.read(raw)


def test_a_number_of_five_thousand_digits_is_refused_and_not_a_mistake() -> None:
    with pytest.raises(BodyError):
        bodies.read(b'{"a":' + b"1" * 5000 + b"}")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        body = bodies.read(raw)
    except BodyError:
        return
    assert isinstance(body.value, dict)
    assert list(body.value) == list(body.members)


def test_members_inside_vendor_objects_are_stripped_at_their_paths_only() -> None:
    body = bodies.read(
        b'{"vllm_xargs":{"a": 1 ,"cache_salt":"x","in":{"cache_salt":"kept"}},"nvext":[{"cache_salt":"kept"}],"other":{"cache_salt":"kept"}}'
    )
    out = bodies.edit(body, engine=VLLM, salt=SALT, served_model="m")
    assert out == (
        b'{"vllm_xargs":{"a":1,"in":{"cache_salt":"kept"}},"nvext":[{"cache_salt":"kept"}],"other":{"cache_salt":"kept"},"cache_salt":"'
        + SALT.encode()
        + b'"}'
    )


@pytest.mark.parametrize(
    "outgoing",
    [
        b'{"model":"m"}',
        b'{"model":"m","cache_salt":"other"}',
        b'{"model":"m","cache_salt":""}',
        b'{"cache_salt":"' + SALT.encode() + b'","cache_salt":"' + SALT.encode() + b'"}',
        b'{"priority":1,"cache_salt":"' + SALT.encode() + b'"}',
    ],
)
def test_a_body_without_exactly_our_salt_is_never_handed_out(outgoing: bytes) -> None:
    with pytest.raises(SaltError):
        bodies.check_salt(outgoing, engine=VLLM, salt=SALT, members=2)


def test_an_engine_without_salts_gets_none() -> None:
    out = bodies.edit(bodies.read(b'{"model":"x","cache_salt":"evil"}'), engine=ENGINES["llamacpp"], salt=SALT, served_model="m")
    assert out == b'{"model":"m"}'


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b'{"stream":true}', b'{"include_usage":true}'),
        (b'{"stream":true,"stream_options":null}', b'{"include_usage":true}'),
        (b'{"stream":true,"stream_options":{"include_usage":false,"x":1}}', b'{"include_usage":true,"x":1}'),
        (
            b'{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}',
            b'{"include_usage":true,"continuous_usage_stats":true}',
        ),
        (b'{"stream":true,"stream_options":{"continuous_usage_stats":true}}', b'{"include_usage":true}'),
        (b'{"stream":false,"stream_options":{"x":1}}', b'{"x":1}'),
    ],
)
def test_streams_report_usage_and_nothing_else_is_switched_on(sent: bytes, expected: bytes) -> None:
    out = bodies.edit(bodies.read(sent), engine=VLLM, salt=SALT, served_model="m")
    assert bytes(msgspec.json.decode(out, type=dict[str, msgspec.Raw])["stream_options"]) == expected


def test_every_engine_states_what_it_strips() -> None:
    engine: Engine
    for engine in ENGINES.values():
        assert {"cache_salt", "kv_transfer_params", "request_id", "priority"} <= engine.stripped


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", {"kv_cache_report_mode": "full"}),
        (b',"vllm_xargs":null', {"kv_cache_report_mode": "full"}),
        (b',"vllm_xargs":{"a":1.50,"session_id":"s"}', {"a": 1.5, "kv_cache_report_mode": "full"}),
        (b',"vllm_xargs":{"kv_cache_report_mode":"none"}', {"kv_cache_report_mode": "full"}),
        (b',"vllm_xargs":[7]', [7]),
    ],
)
def test_a_full_report_is_asked_for_by_us_alone(sent: bytes, expected: object) -> None:
    body = bodies.read(b'{"model":"m","prompt":"hi"' + sent + b"}")
    asked = msgspec.json.decode(bodies.edit(body, engine=ENGINES["vllm"], salt=SALT, served_model="s", full_report=True))
    assert asked["vllm_xargs"] == expected
    assert asked["cache_salt"] == SALT
    silent = msgspec.json.decode(bodies.edit(body, engine=ENGINES["vllm"], salt=SALT, served_model="s"))
    assert "full" not in str(silent.get("vllm_xargs"))
    other = bodies.edit(body, engine=ENGINES["sglang"], salt=SALT, served_model="s", full_report=True)
    assert b"full" not in other
