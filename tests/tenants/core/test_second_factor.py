"""Second factors, pure: the field's own vectors, codes that are taken once, and secrets that open for their person alone."""

from __future__ import annotations

from uuid import UUID

import pytest

from tenants.core import second_factor as rules

SECRET = b"12345678901234567890"  # RFC 6238, appendix B
ADA, BOB = UUID(int=1), UUID(int=2)
KEY, OTHER = b"k" * 32, b"o" * 32
NONCE = b"n" * 12


@pytest.mark.parametrize(("now_s", "code"), [(59, "287082"), (1111111109, "081804"), (1234567890, "005924"), (20000000000, "353130")])
def test_codes_are_those_of_the_rfc(now_s: int, code: str) -> None:
    """The last six digits of its SHA-1 vectors, each known by its step of 30 s."""
    assert rules.step_of(SECRET, code, now_s=now_s, last_step=None) == now_s // 30


def test_a_clock_may_differ_by_one_step() -> None:
    for drift, found in [(-60, False), (-30, True), (0, True), (30, True), (60, False)]:
        assert (rules.step_of(SECRET, "081804", now_s=1111111109 + drift, last_step=None) is not None) is found


def test_a_step_is_taken_once_and_none_before_it() -> None:
    """The control: the step after the last used one is still good."""
    step = 1111111109 // 30
    assert rules.step_of(SECRET, "081804", now_s=1111111109, last_step=step) is None
    assert rules.step_of(SECRET, "081804", now_s=1111111109, last_step=step + 1) is None
    assert rules.step_of(SECRET, "081804", now_s=1111111109, last_step=step - 1) == step


@pytest.mark.parametrize("code", ["", "81804", "0818041", "08180a", "٠٨١٨٠٤", "081804\n", "-81804", " 81804"])
def test_what_is_no_code_is_refused(code: str) -> None:
    assert rules.step_of(SECRET, code, now_s=1111111109, last_step=None) is None


def test_a_sealed_secret_opens_for_its_person_alone() -> None:
    sealed = rules.seal(KEY, SECRET, ADA, NONCE)
    assert SECRET not in sealed
    assert rules.unseal((KEY,), sealed, ADA) == SECRET
    bad = [((KEY,), BOB, sealed), ((OTHER,), ADA, sealed), ((), ADA, sealed), ((KEY,), ADA, sealed[:-1] + b"x"), ((KEY,), ADA, b"")]
    for keys, person, value in bad:
        with pytest.raises(rules.SealError):
            rules.unseal(keys, value, person)


def test_a_former_key_still_opens_and_is_known_as_such() -> None:
    sealed = rules.seal(KEY, SECRET, ADA, NONCE)
    assert rules.unseal((OTHER, KEY), sealed, ADA) == SECRET
    assert (rules.under(KEY, sealed), rules.under(OTHER, sealed)) == (True, False)


def test_keys_and_nonces_have_their_size() -> None:
    for key, nonce in [(b"k" * 31, NONCE), (KEY, b"n" * 11)]:
        with pytest.raises(ValueError, match="32 bytes"):
            rules.seal(key, SECRET, ADA, nonce)
    with pytest.raises(ValueError, match="exactly 10"):
        rules.recovery_code(b"short")


def test_a_recovery_code_is_read_as_people_type_it_and_belongs_to_one_person() -> None:
    code = rules.recovery_code(bytes(range(10)))
    assert len(code) == 19
    digest = rules.recovery_digest(ADA, code)
    assert digest is not None
    assert len(digest) == 32
    assert {rules.recovery_digest(ADA, typed) for typed in (code.upper(), code.replace("-", " "), f" {code} ")} == {digest}
    assert rules.recovery_digest(BOB, code) != digest
    assert [rules.recovery_digest(ADA, typed) for typed in ("", "123456", code[:-1], code + "a", "ä" * 16)] == [None] * 5


def test_the_uri_holds_the_secret_and_whose_it_is() -> None:
    uri = rules.uri(SECRET, "ada@example.com")
    assert uri.startswith("otpauth://totp/Saltroute:ada%40example.com?")
    assert f"secret={rules.as_text(SECRET)}" in uri
