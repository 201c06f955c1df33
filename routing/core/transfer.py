"""The wire of a transfer between two vLLM engines (NixlConnector, observed on 0.32): what the router writes, and what it believes.

    router -> p: the request, one token, no stream, kv_transfer_params {"do_remote_decode": true, "do_remote_prefill": false}
    p -> router: an answer whose kv_transfer_params name p's blocks, its host and port, and the request
    router -> d: the request as it was, with that object; d fetches the blocks from p

``p`` keeps the blocks until ``d`` has them, or, if nobody comes for them, until its lease of 30 s ends: no call gives them back earlier. The object
decides where ``d`` connects to and what it reads there, and a salt does not protect that way, so no client may write it, and what an engine wrote is
read again: known fields only, the engine's own checked host, the request that was just sent.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

LEASE_S = 30.0
PREFILL = b'{"do_remote_decode":true,"do_remote_prefill":false}'
MAX_GROUPS = 64
MAX_BLOCKS = 65_536
MAX_TOKENS = 16_000_000
MAX_RANKS = 1024
_NAME = re.compile(r"[A-Za-z0-9_.:\-]{1,256}")

Refusal = Literal["absent", "shape", "direction", "blocks", "host", "port", "request", "mode", "tokens"]


class TransferError(Exception):
    """What an engine handed over cannot be believed; ``reason`` is one of a few words."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason)
        self.reason = reason


class Handed(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The object, known fields only, in the engine's own order."""

    do_remote_prefill: bool
    do_remote_decode: bool
    remote_block_ids: list[list[int]]
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    tp_size: int = 1
    dcp_size: int = 1
    pp_size: int = 1
    remote_num_tokens: int | None = None
    remote_blocks_expiry_time: float | None = None
    transfer_mode: str = "pull"
    remote_prefill_cached_tokens: int = 0


def believe(value: object, *, hosts: Collection[str], request_id: str) -> bytes:
    """Check what a prefill engine handed over and write it anew, as JSON. ``hosts`` are that engine's own: the name in its URL, and the address that
    was connected to; ``request_id`` is the id under which it was asked.

    Raises:
        TransferError: anything else than what such an engine says of this very request.
    """
    if value is None:
        raise TransferError("absent")
    try:
        handed = msgspec.convert(value, Handed, strict=True)
    except msgspec.ValidationError:
        raise TransferError("shape") from None
    _check(handed, hosts, request_id)
    return msgspec.json.encode(handed)


def _check(handed: Handed, hosts: Collection[str], request_id: str) -> None:
    blocks = handed.remote_block_ids
    tokens = handed.remote_num_tokens
    sizes = (handed.tp_size, handed.dcp_size, handed.pp_size)
    expiry = handed.remote_blocks_expiry_time
    rules: tuple[tuple[bool, Refusal], ...] = (
        (handed.do_remote_prefill and not handed.do_remote_decode, "direction"),
        (handed.transfer_mode == "pull", "mode"),  # pushing engines were never seen
        (_host(handed.remote_host) in {_host(host) for host in hosts}, "host"),
        (1024 <= handed.remote_port <= 65535, "port"),
        (0 < len(blocks) <= MAX_GROUPS and sum(map(len, blocks)) <= MAX_BLOCKS, "blocks"),
        (all(0 <= one < 2**31 for group in blocks for one in group), "blocks"),
        (_NAME.fullmatch(handed.remote_engine_id) is not None, "request"),
        (_NAME.fullmatch(handed.remote_request_id) is not None and request_id in handed.remote_request_id, "request"),
        (tokens is None or 0 < tokens <= MAX_TOKENS, "tokens"),
        (0 <= handed.remote_prefill_cached_tokens <= (MAX_TOKENS if tokens is None else tokens), "tokens"),
        (all(1 <= size <= MAX_RANKS for size in sizes), "shape"),
        (expiry is None or 0 <= expiry < 1e12, "shape"),
    )
    for holds, reason in rules:
        if not holds:
            raise TransferError(reason)


def _host(text: str) -> str:
    """One spelling of an address; names stay as they are, in lower case."""
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return text.lower()
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def can_go(body: Mapping[str, Any], *, answers: int, reads_cache: bool) -> bool:
    """Whether a request's prompt can be computed elsewhere: one answer to a prompt that is looked up in the cache, and no beam search."""
    return answers == 1 and reads_cache and body.get("use_beam_search") is not True


def of_prefill(body: Mapping[str, Any]) -> tuple[dict[str, bytes], frozenset[str]]:
    """Members that the first call sets, and members of the client's that it leaves out: one token, at once."""
    written = {"max_tokens": b"1", "stream": b"false"}
    if "max_completion_tokens" in body:
        written["max_completion_tokens"] = b"1"
    return written, frozenset({"stream_options", "min_tokens"})
