"""Names derived from an identity: well-formed, separate for separate identities, and telling nothing of one another."""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespaces.core.identity import encode
from namespaces.core.keyring import TenantKey
from namespaces.core.salts import derive
from namespaces.core.subject import Adapter, Artifact, Model, ScopeLevel, Sharing, Subject
from tests.namespaces.core import subjects as draw

SALT = re.compile(r"sr1-[A-Za-z0-9_-]{43}")
secrets = st.binary(min_size=32, max_size=32)


def _key(subject: Subject, secret: bytes = bytes(32), version: int = 1) -> TenantKey:
    return TenantKey(subject.tenant_id, version, secret)


@given(draw.subjects, secrets)
def test_salts_have_the_form_that_every_engine_accepts(subject: Subject, secret: bytes) -> None:
    names = derive(_key(subject, secret), subject)
    assert SALT.fullmatch(names.salt)
    assert re.fullmatch(r"ns-[0-9a-f]{32}", names.public_id)
    assert len(names.index_seed) == 32


@given(draw.subjects, st.sampled_from(sorted(draw.ALWAYS)))
def test_any_single_change_changes_all_three_names(subject: Subject, change: str) -> None:
    changed = draw.ALWAYS[change](subject)
    before, after = derive(_key(subject), subject), derive(_key(changed), changed)
    assert before.salt != after.salt
    assert before.index_seed != after.index_seed
    assert before.public_id != after.public_id


@given(draw.subjects, draw.subjects)
def test_names_are_equal_exactly_when_all_that_counts_is_equal(one: Subject, other: Subject) -> None:
    same = draw.counted(one) == draw.counted(other)
    assert (derive(_key(one), one) == derive(_key(other), other)) == same


@given(draw.subjects, secrets, secrets)
def test_another_tenant_key_gives_other_names(subject: Subject, one: bytes, other: bytes) -> None:
    first, second = derive(_key(subject, one), subject), derive(_key(subject, other), subject)
    assert (first.salt == second.salt) == (one == other)
    assert (first.index_seed == second.index_seed) == (one == other)


@given(draw.subjects)
def test_the_three_names_share_no_bytes(subject: Subject) -> None:
    names = derive(_key(subject), subject)
    salt = base64.urlsafe_b64decode(names.salt.removeprefix("sr1-") + "=")
    assert len({salt[:16], names.index_seed[:16], bytes.fromhex(names.public_id.removeprefix("ns-"))}) == 3


@given(draw.subjects)
def test_secret_names_are_not_printed(subject: Subject) -> None:
    key = _key(subject, bytes(range(32)))
    names = derive(key, subject)
    assert names.salt not in repr(names)
    assert repr(names.index_seed) not in repr(names)
    assert repr(key.secret) not in repr(key)


def test_a_key_of_another_tenant_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="different tenants"):
        derive(TenantKey(UUID(int=9), 1, bytes(32)), VECTOR)


# --- known answer -------------------------------------------------------------------------------------------------------

VECTOR = Subject(
    tenant_id=UUID("00112233-4455-6677-8899-aabbccddeeff"),
    sharing=Sharing.SCOPE,
    scope=(ScopeLevel(UUID(int=1), "", 1), ScopeLevel(UUID(int=2), "support", 3)),
    engine_family="vllm",
    model=Model("m-7b", "r1", None, "fp8"),
    tokenizer=Artifact(bytes(range(32)), "t1"),
    chat_template=Artifact(None, "t1"),
    epoch=(4, 5),
    adapter=Adapter("tone", "a2", 2),
    context=(("org_policy", "v7"), ("tools", "v3")),
)


def _cbor(value: object) -> bytes:
    """Deterministic CBOR of the few types that an identity holds, written from RFC 8949 and short items only."""

    def head(major: int, number: int) -> bytes:
        return bytes([major << 5 | number]) if number < 24 else bytes([major << 5 | 24, number])

    match value:
        case None:
            return b"\xf6"
        case int():
            return head(0, value)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value.encode())) + value.encode()
        case list():
            return head(4, len(value)) + b"".join(map(_cbor, value))
    raise TypeError(value)


def test_schema_1_known_answer() -> None:
    """A second, independent reading of the law. If this fails, every cache in the field goes cold: raise the schema version instead."""
    identity = [
        ["tenant", VECTOR.tenant_id.bytes],
        ["sharing", "scope"],
        ["scope", [[UUID(int=1).bytes, "", 1], [UUID(int=2).bytes, "support", 3]]],
        ["engine", "vllm"],
        ["model", ["m-7b", "r1", None, "fp8"]],
        ["tokenizer", [bytes(range(32)), "t1"]],
        ["chat_template", [None, "t1"]],
        ["adapter", ["tone", "a2", 2]],
        ["context", [["org_policy", "v7"], ["tools", "v3"]]],
        ["multimodal", None],
        ["epoch", [4, 5]],
    ]
    written = _cbor([1, identity])
    assert encode(VECTOR) == written

    secret = b"\x2a" * 32
    extracted = hmac.digest(b"saltroute/v1", secret, "sha256")
    # The identity is longer than 255 bytes, so its CBOR head has a two-byte length, which _cbor does not write.
    info = b"\x82" + _cbor("engine-salt") + b"\x59" + len(written).to_bytes(2, "big") + written
    first_block = hmac.digest(extracted, info + b"\x01", "sha256")  # HKDF-Expand to 32 bytes is its first block
    names = derive(TenantKey(VECTOR.tenant_id, 1, secret), VECTOR)
    assert names.salt == "sr1-" + base64.urlsafe_b64encode(first_block).decode().rstrip("=")
    assert names.salt == "sr1-wsFs47dWR1FLvJRsXmYwa3iZPPGV0b-WJgDhL1JmT6I"


@given(draw.subjects)
def test_version_of_the_tenant_key_counts_only_through_its_secret(subject: Subject) -> None:
    assert derive(_key(subject, version=1), subject) == derive(_key(subject, version=2), replace(subject))
