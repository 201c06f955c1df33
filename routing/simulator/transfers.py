"""The way of a prompt's KV cache from one simulated engine to another: what vLLM does with NixlConnector, over a socket of our own.

A prefill replica keeps the blocks of a request that asked for it, under a lease, and says in its answer where they are. A decode replica that is told
so asks for them on the side channel, takes as long as the transfer would, and sends word that they may go. Wire: one JSON object a line.
What it leaves out: heartbeats that prolong a lease, blocks pushed instead of pulled, a local hit that shortens the transfer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from routing.simulator.config import TransferConfig
from routing.simulator.errors import ApiError

_MAX_LINE_BYTES = 64 * 1024


def fetch_failed() -> ApiError:
    """What a decode replica answers that cannot have the blocks (kv_load_failure_policy "fail")."""
    return ApiError(500, "Internal server error", kind="InternalServerError")


class Transfers:
    """One replica's end. ``release`` gives the blocks of a finished request back to its engine; False: they are not there."""

    def __init__(self, config: TransferConfig, *, host: str, release: Callable[[str], bool], expired: Callable[[], None]) -> None:
        self.config = config
        self.engine_id = str(uuid.uuid4())
        self.port = config.port
        self._host = host
        self._release = release
        self._expired = expired
        self._held: dict[str, tuple[str, asyncio.TimerHandle]] = {}  # by the id under which the blocks may be asked for
        self._server: asyncio.Server | None = None

    @property
    def held(self) -> int:
        """Requests whose blocks wait to be fetched."""
        return len(self._held)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=_MAX_LINE_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Whoever asks from now on is refused a connection."""
        server, self._server = self._server, None
        for _, timer in self._held.values():
            timer.cancel()
        self._held.clear()
        if server is not None:
            server.close()
            await server.wait_closed()

    # -- the prefill side ------------------------------------------------------------------------------------------

    def hand_over(self, answer_id: str, engine_request: str, *, blocks: tuple[int, ...], prompt_tokens: int, cached_tokens: int) -> dict[str, Any]:
        """Begin the lease; returns what the answer says of it."""
        request_id = f"{answer_id}-{uuid.uuid4().hex[:8]}"
        timer = asyncio.get_running_loop().call_later(self.config.lease_s, self._expire, request_id)
        self._held[request_id] = (engine_request, timer)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(blocks)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self._host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": cached_tokens,
        }

    def _expire(self, request_id: str) -> None:
        if self._free(request_id):
            self._expired()

    def _free(self, request_id: str) -> bool:
        engine_request, timer = self._held.pop(request_id, (None, None))
        if timer is not None:
            timer.cancel()
        return engine_request is not None and self._release(engine_request)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                asked = json.loads(line)
                known = asked.get("engine_id") == self.engine_id and asked.get("request_id") in self._held
                if known and asked.get("op") == "free":
                    self._free(asked["request_id"])
                writer.write(json.dumps({"ok": known}).encode() + b"\n")
                await writer.drain()
        writer.close()

    # -- the decode side -------------------------------------------------------------------------------------------

    async def fetch(self, params: Mapping[str, Any]) -> None:
        """Take the blocks over.

        Raises:
            ApiError: nobody there, or they do not know the engine or the request.
        """
        try:
            reader, writer = await asyncio.open_connection(str(params.get("remote_host")), int(params.get("remote_port") or 0))
        except (OSError, ValueError, OverflowError):
            await asyncio.sleep(self.config.unreachable_s)
            raise fetch_failed() from None
        try:
            if not await self._say(reader, writer, "read", params):
                raise fetch_failed()
            tokens = params.get("remote_num_tokens")
            await asyncio.sleep(self.config.setup_s + (tokens if isinstance(tokens, int) else 0) / self.config.tokens_per_s)
            await self._say(reader, writer, "free", params)
        except (OSError, ValueError):
            raise fetch_failed() from None
        finally:
            writer.close()

    async def refuse(self, params: Mapping[str, Any]) -> None:
        """The request is refused here: tell the other side that nobody will come for the blocks."""
        with contextlib.suppress(OSError, ValueError, OverflowError):
            reader, writer = await asyncio.open_connection(str(params.get("remote_host")), int(params.get("remote_port") or 0))
            try:
                await self._say(reader, writer, "free", params)
            finally:
                writer.close()

    @staticmethod
    async def _say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, op: str, params: Mapping[str, Any]) -> bool:
        said = {"op": op, "engine_id": params.get("remote_engine_id"), "request_id": params.get("remote_request_id")}
        writer.write(json.dumps(said).encode() + b"\n")
        await writer.drain()
        return json.loads(await reader.readline() or b"{}").get("ok") is True
