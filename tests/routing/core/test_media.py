"""Which URLs engines may be handed, and how media enter the prefix."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core import media

HOSTS = ("media.acme.example", ".cdn.example")


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64,AAAA", "DATA:,x", "https://media.acme.example/a.png", "https://x.cdn.example/a", "https://media.acme.example:443/a"],
)
def test_inline_and_listed(url: str) -> None:
    assert media.allowed(url, HOSTS)


@pytest.mark.parametrize(
    "url",
    ["http://media.acme.example/a", "https://media.acme.example.evil/a", "https://evilcdn.example/a", "https://user@media.acme.example/a", "file:///etc/passwd",
     "https://media.acme.example:8443/a", "//media.acme.example/a", "", "/a", "https://[::1]/a", "https://127.0.0.1/", "https://2130706433/", "ftp://x.cdn.example/a",
     "https://media.acme.example\\@10.0.0.1/"],
)  # fmt: skip
def test_everything_else_is_refused(url: str) -> None:
    assert not media.allowed(url, HOSTS)


@pytest.mark.parametrize(
    "url",
    ["https://10.0.0.1/", "https://2130706433/", "https://0x7f.1/", "https://localhost/", "https://metadata.google.internal/", "https://x.local/"],
)
def test_even_an_open_list_means_named_public_hosts(url: str) -> None:
    assert media.allowed("https://any.example/a", ("*",))
    assert not media.allowed(url, ("*",))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://x/"}},
        {"type": "image_url", "image_url": "http://x/"},
        {"type": "video_url", "video_url": {"url": "http://x/"}},
        {"type": "tool_result", "content": [{"type": "audio_url", "audio_url": {"url": "http://x/"}}]},
        {"type": "file", "file": {"file_url": "http://x/"}},
    ],
)
def test_urls_are_found_wherever_engines_read_them(part: Any) -> None:
    assert media.refused_urls([{"role": "user", "content": [part]}], HOSTS) == 1


def test_text_that_mentions_a_url_is_text() -> None:
    assert (
        media.refused_urls(
            [{"role": "user", "content": "see http://x/"}, {"role": "user", "content": [{"type": "text", "text": "http://x/"}]}, "x"], HOSTS
        )
        == 0
    )


def test_long_media_enter_the_prefix_by_digest_and_text_as_it_is() -> None:
    text = {"type": "text", "text": "y" * 5000}
    image = {"type": "image_url", "image_url": {"url": "data:," + "x" * 5000}}
    other = {"type": "image_url", "image_url": {"url": "data:," + "z" * 5000}}
    compacted, found = media.compact([{"role": "user", "content": [text, image]}, {"role": "user", "content": "plain"}])
    assert found
    assert compacted[0]["content"][0] == text
    assert set(compacted[0]["content"][1]) == {"sha256"}
    assert compacted[1] == {"role": "user", "content": "plain"}
    assert media.compact([{"role": "user", "content": [text, other]}])[0] != compacted[:1]
    assert media.compact([{"role": "user", "content": [text]}])[1] is False
