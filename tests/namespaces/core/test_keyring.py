"""What is wrapped or sealed opens for its owner and purpose, and for nobody else, whatever was changed."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from namespaces.core import keyring
from namespaces.core.keyring import KeyringError, TenantKey
from tests.namespaces.core.subjects import uuids

roots = st.binary(min_size=32, max_size=32)
nonces = st.binary(min_size=12, max_size=12)
payloads = st.binary(max_size=64)
versions = st.integers(1, 2**31)
keys = st.builds(TenantKey, tenant_id=uuids, version=versions, secret=roots)


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """One way to change a byte string: flip a bit, cut it anywhere, or append."""
    kind = draw(st.sampled_from(["flip", "cut", "append"]))
    place = draw(st.integers(0, 10_000))
    if kind == "flip":
        return lambda raw: raw[: place % len(raw)] + bytes([raw[place % len(raw)] ^ (1 << place % 8)]) + raw[place % len(raw) + 1 :]
    if kind == "cut":
        return lambda raw: raw[: place % len(raw)]
    return lambda raw: raw + bytes([place % 256])


@given(roots, keys, nonces)
def test_a_wrapped_tenant_key_opens_again(root: bytes, key: TenantKey, nonce: bytes) -> None:
    wrapped = keyring.wrap_tenant_key(root, key, nonce)
    assert key.secret not in wrapped
    assert keyring.unwrap_tenant_key(root, key.tenant_id, key.version, wrapped) == key


@given(roots, roots, keys, keys)
def test_a_wrapped_tenant_key_opens_for_nobody_else(root: bytes, other_root: bytes, key: TenantKey, other: TenantKey) -> None:
    assume(other_root != root)
    assume(other.tenant_id != key.tenant_id)
    assume(other.version != key.version)
    wrapped = keyring.wrap_tenant_key(root, key, bytes(12))
    for wrong in ((other_root, key.tenant_id, key.version), (root, other.tenant_id, key.version), (root, key.tenant_id, other.version)):
        with pytest.raises(KeyringError):
            keyring.unwrap_tenant_key(*wrong, wrapped)


@given(roots, keys, nonces, damages())
def test_a_damaged_wrapped_key_does_not_open(root: bytes, key: TenantKey, nonce: bytes, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(KeyringError):
        keyring.unwrap_tenant_key(root, key.tenant_id, key.version, damage(keyring.wrap_tenant_key(root, key, nonce)))


@given(roots, payloads, st.binary(max_size=8))
def test_what_is_sealed_with_the_public_half_opens_with_the_root(root: bytes, plaintext: bytes, info: bytes) -> None:
    sealed = keyring.seal(keyring.seal_public_key(root), plaintext, info=info)
    assert keyring.unseal(root, sealed, info=info) == plaintext
    assert keyring.seal(keyring.seal_public_key(root), plaintext, info=info) != sealed  # equal plaintexts are not recognisable


@given(roots, roots, payloads, st.binary(max_size=8), st.binary(max_size=8))
def test_what_is_sealed_opens_under_no_other_root_or_purpose(root: bytes, other: bytes, plaintext: bytes, info: bytes, wrong: bytes) -> None:
    assume(other != root)
    assume(wrong != info)
    sealed = keyring.seal(keyring.seal_public_key(root), plaintext, info=info)
    with pytest.raises(KeyringError):
        keyring.unseal(other, sealed, info=info)
    with pytest.raises(KeyringError):
        keyring.unseal(root, sealed, info=wrong)


@given(roots, payloads, damages())
def test_a_damaged_sealed_value_does_not_open(root: bytes, plaintext: bytes, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(KeyringError):
        keyring.unseal(root, damage(keyring.seal(keyring.seal_public_key(root), plaintext, info=b"i")), info=b"i")


@given(roots, payloads, nonces, damages())
def test_router_state_opens_again_and_not_when_damaged(root: bytes, plaintext: bytes, nonce: bytes, damage: Callable[[bytes], bytes]) -> None:
    locked = keyring.lock_state(root, plaintext, nonce)
    assert keyring.open_state(root, locked) == plaintext
    with pytest.raises(KeyringError):
        keyring.open_state(root, damage(locked))


@given(roots, keys, nonces)
def test_purposes_do_not_mix(root: bytes, key: TenantKey, nonce: bytes) -> None:
    with pytest.raises(KeyringError):
        keyring.open_state(root, keyring.wrap_tenant_key(root, key, nonce))
    with pytest.raises(KeyringError):
        keyring.unwrap_tenant_key(root, key.tenant_id, key.version, keyring.lock_state(root, key.secret, nonce))


@given(uuids, uuids, uuids, uuids)
def test_a_credential_is_bound_to_its_tenant_and_replica(tenant: UUID, replica: UUID, other_tenant: UUID, other_replica: UUID) -> None:
    same = (tenant, replica) == (other_tenant, other_replica)
    assert (keyring.credential_info(tenant, replica) == keyring.credential_info(other_tenant, other_replica)) == same


@given(st.binary(max_size=64).filter(lambda root: len(root) != 32))
def test_a_root_key_of_another_length_is_refused_everywhere(root: bytes) -> None:
    key = TenantKey(UUID(int=1), 1, bytes(32))
    for use in (
        lambda: keyring.seal_public_key(root),
        lambda: keyring.unseal(root, bytes(80), info=b""),
        lambda: keyring.lock_state(root, b"", bytes(12)),
        lambda: keyring.open_state(root, bytes(40)),
        lambda: keyring.wrap_tenant_key(root, key, bytes(12)),
        lambda: keyring.unwrap_tenant_key(root, key.tenant_id, 1, bytes(60)),
    ):
        with pytest.raises(KeyringError, match="32 bytes"):
            use()


@given(roots)
def test_public_halves_are_not_the_root(root: bytes) -> None:
    assert root not in (keyring.seal_public_key(root), keyring.publish_public_key(root))
    assert len(keyring.publish_public_key(root)) == len(keyring.seal_public_key(root)) == 32
