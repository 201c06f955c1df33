"""Which URLs may be registered and which addresses connected to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.outbound.addresses import MALFORMED, UrlRefused, address_allowed, check_url, normalise_url, parse_ranges

INNER = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://127.0.0.1:5432",
    "http://0.0.0.0:8000",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://localhost.",
    "http://LOCALHOST:8000",
    "http://x.localhost",
    "http://metadata.google.internal",
    "http://10.0.0.1:8000",
    "http://100.64.0.1",
    "http://[::1]:8000",
    "http://[::]:8000",
    "http://[64:ff9b::7f00:1]",
    "http://[2002:7f00:1::]",
    "http://[::ffff:10.0.0.1]",
    "http://224.0.0.1",
    "http://255.255.255.255",
    "http://192.168.1.1",
    "http://[fe80::1]",
    "file:///etc/passwd",
    "gopher://x",
    "http://user:pw@host/",
    "http://good.example:22",
    "http://good.example/v1/../../admin",
    "http://good.example/%2e%2e/admin",
    "http://good.example/?x=1",
    "http://good.example/#x",
    "http://[fe80::1%25eth0]",
    "http://1.2.3.4.5",
    "http://999.1.1.1",
    "http://good_.example space",
    "http://",
    "http:///x",
    "//good.example",
    "good.example",
    "http://good.example:99999",
    "http://exämple.com",
    "http://good.example\\@evil",
    "http://" + "a" * 600,
    None,
    7,
]


@pytest.mark.parametrize("url", INNER)
def test_inner_and_odd_urls_are_refused_without_a_word_of_what_was_resolved(url: object) -> None:
    with pytest.raises(UrlRefused) as refused:
        check_url(url, ())
    assert refused.value.reason in {*MALFORMED, "address"}


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("https://gpu.acme.example:8443/v1", "https://gpu.acme.example:8443"),
        ("HTTP://GPU.Acme.Example.:80/", "http://gpu.acme.example"),
        ("https://gpu.acme.example:443", "https://gpu.acme.example"),
        ("http://gpu.acme.example/team-a/v1/", "http://gpu.acme.example/team-a"),
        ("http://8.8.8.8:8000", "http://8.8.8.8:8000"),
        ("http://134744072:8000", "http://8.8.8.8:8000"),
        ("http://[2001:4860:4860:0:0:0:0:8888]:8000", "http://[2001:4860:4860::8888]:8000"),
    ],
)
def test_two_spellings_of_one_engine_are_one_engine(url: str, normal: str) -> None:
    assert check_url(url, ()) == normal
    assert normalise_url(normal) == normal


def test_a_range_opens_what_it_names_and_nothing_else() -> None:
    ranges = parse_ranges(["10.1.0.0/16", "fd12::/16"])
    assert check_url("http://10.1.2.3:8000", ranges) == "http://10.1.2.3:8000"
    assert check_url("http://[fd12::1]:8000", ranges)
    assert check_url("http://[::ffff:10.1.2.3]:8000", ranges)
    for url in ("http://10.2.0.1", "http://127.0.0.1", "http://[::1]", "http://localhost"):
        with pytest.raises(UrlRefused):
            check_url(url, ranges)
    assert check_url("http://localhost:9001", parse_ranges(["127.0.0.0/8"])) == "http://localhost:9001"


@pytest.mark.parametrize("wide", ["0.0.0.0/0", "169.254.0.0/16"])
def test_a_wide_range_does_not_open_the_metadata_service(wide: str) -> None:
    metadata = ipaddress.ip_address("169.254.169.254")
    assert not address_allowed(metadata, parse_ranges([wide]))
    assert not address_allowed(ipaddress.ip_address("::ffff:169.254.169.254"), parse_ranges([wide, "::/0"]))
    assert address_allowed(metadata, parse_ranges(["169.254.169.254/32"]))


def test_one_inner_address_among_public_ones_is_enough_to_refuse() -> None:
    with pytest.raises(UrlRefused) as refused:
        check_url("http://reb.example:8000", (), lambda _: ["198.51.100.7", "::1"])
    assert str(refused.value) == "address"
    assert check_url("http://new.example:8000", (), lambda _: []) == "http://new.example:8000"


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_every_form(address: ipaddress.IPv4Address) -> None:
    allowed = address_allowed(address, ())
    assert address_allowed(ipaddress.ip_address(f"::ffff:{address}"), ()) == allowed
    assert address_allowed(ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | int(address)), ()) == allowed
    assert not (allowed and (address.is_private or address.is_loopback or address.is_link_local or address.is_multicast))
    for text in (str(int(address)), hex(int(address)), str(address)):
        try:
            check_url(f"http://{text}:8000", ())
            accepted = True
        except UrlRefused:
            accepted = False
        assert accepted == allowed


@given(st.text(max_size=40))
def test_any_text_is_normalised_or_refused_and_normalising_twice_changes_nothing(text: str) -> None:
    try:
        normal = normalise_url("http://" + text)
    except UrlRefused:
        return
    assert normalise_url(normal) == normal
