"""A replica: the pure engine driven in real time, its event publisher and its metrics. No HTTP."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import msgspec

from routing.simulator.answers import Choice
from routing.simulator.config import Adapter, Faults, ReplicaConfig, SaltMode
from routing.simulator.engine import Engine
from routing.simulator.errors import BACKLOG_MESSAGE, ApiError, busy, engine_dead
from routing.simulator.language import KNOWN_WORDS, Speech, seed_of, speak
from routing.simulator.metrics import ReplicaMetrics
from routing.simulator.publisher import Publisher
from routing.simulator.requests import Call
from routing.simulator.submission import Output, Submission
from routing.simulator.tokenizer import Tokenizer, load_tokenizer
from routing.simulator.transfers import Transfers

_MOST_LAG_S = 0.25  # how far the engine's clock may fall behind before the lost time is given up
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it arrived, kept so that a test can see what a router sent. Simulator only."""

    number: int
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool


class Generation:
    """One call in the engine: its choices, and a queue of their tokens. Close it on every exit."""

    def __init__(self, replica: Replica, choices: list[Choice]) -> None:
        self._replica = replica
        self.choices = choices
        # Without a bound of its own: a choice has at most max_model_len tokens, and its text exists already.
        self.queue: asyncio.Queue[tuple[Choice, Output] | ApiError] = asyncio.Queue()
        self.running: dict[str, Choice] = {}
        self.engine_ids: list[str] = []
        self.handed = False  # somebody was told where its blocks are

    async def next(self) -> tuple[Choice, str]:
        """The next token's choice and text.

        Raises:
            ApiError: the engine died meanwhile.
        """
        item = await self.queue.get()
        if isinstance(item, ApiError):
            raise item
        choice, output = item
        return choice, choice.take(output)

    @property
    def unfinished(self) -> bool:
        return any(not choice.finished for choice in self.choices)

    def close(self) -> None:
        """Abort whatever still runs. Its full prompt blocks stay cached. Safe to repeat."""
        self._replica.abandon(self)


class Replica:
    """Everything of one replica that outlives a request. ``start`` begins a generation: empty cache, sequence 0."""

    def __init__(self, config: ReplicaConfig, tokenizer: Tokenizer | None = None) -> None:
        self.config = config
        self.faults = config.faults
        self.tokenizer = tokenizer or load_tokenizer(config.tokenizer_path, config.chat_template_path, KNOWN_WORDS)
        self.requests: deque[RecordedRequest] = deque(maxlen=config.recorded_requests)
        self.inflight = 0
        self.kv_ports: tuple[int | None, int | None] = (None, None)
        self._request_numbers = itertools.count(1)
        self._engine_ids = itertools.count(1)
        self._generations: dict[str, Generation] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self.transfers: Transfers | None = None
        self.watch: Callable[[Output], None] = lambda _output: None  # sees every output as it leaves
        self._begin()

    def _begin(self) -> None:
        config = self.config
        self.engine = Engine(config.engine)
        self.publisher = Publisher(
            config.topic,
            hwm_messages=config.kv_hwm_messages,
            buffer_steps=config.kv_buffer_steps,
            rank=config.data_parallel_rank,
            faults=lambda: self.faults,
        )
        self.started_unix_s = time.time()
        self.metrics = ReplicaMetrics(config, started_unix_s=self.started_unix_s)
        if config.transfers is not None:
            wanted = config.transfers if self.transfers is None else replace(config.transfers, port=self.transfers.port)
            self.transfers = Transfers(wanted, host=config.host, release=self._give_back, expired=self.metrics.expire)

    def _give_back(self, engine_id: str) -> bool:
        given = self.engine.give_back(engine_id)
        self.metrics.show(self.engine.stats())
        return given

    def start(self) -> None:
        if self.config.kv_port is not None:
            port, replay_port = (known or wanted for known, wanted in zip(self.kv_ports, self._wanted_kv_ports(), strict=True))
            self.publisher.start(self.config.host, port or 0, replay_port)
            self.kv_ports = self.publisher.ports
        self._stepping = asyncio.get_running_loop().create_task(self._run())
        self._stepping.add_done_callback(self._died)

    async def stop(self) -> None:
        """Die as a killed engine does: running requests end with its error, no event is sent."""
        self._fail_running()
        if self.transfers is not None:
            await self.transfers.stop()
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.gather(self._stepping, return_exceptions=True)
            self._stepping = None
        await self.publisher.stop()
        self._begin()

    def _wanted_kv_ports(self) -> tuple[int | None, int | None]:
        return self.config.kv_port, self.config.replay_port

    def _fail_running(self) -> None:
        for generation in set(self._generations.values()):
            generation.queue.put_nowait(engine_dead())
        self._generations.clear()

    def _died(self, stepping: asyncio.Task[None]) -> None:
        """A mistake of ours in the loop must not look like a replica that merely hangs."""
        error = None if stepping.cancelled() else stepping.exception()
        if error is not None:
            _log.error("the simulated engine died", exc_info=error)
            self._fail_running()

    # -- requests --------------------------------------------------------------------------------------------------

    def record(self, method: str, path: str, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        most = self.config.recorded_body_bytes
        self.requests.append(RecordedRequest(next(self._request_numbers), method, path, headers, body[:most], len(body) > most))

    def generate(self, call: Call) -> Generation:
        """Hand a call to the engine.

        Raises:
            ApiError: the engine's queue is full, or the engine is dead.
        """
        if self._stepping is None or self._stepping.done():
            raise engine_dead()
        self._check_admission(call)
        choices = [
            Choice(index=place * call.choices_per_prompt + number, prompt=prompt, speech=self._speech(call, place, number))
            for place, prompt in enumerate(call.prompts)
            for number in range(call.choices_per_prompt)
        ]
        generation = Generation(self, choices)
        now_s = asyncio.get_running_loop().time()
        for choice in choices:
            engine_id = str(next(self._engine_ids))
            generation.running[engine_id] = choice
            generation.engine_ids.append(engine_id)
            self._generations[engine_id] = generation
            self.engine.submit(
                Submission(
                    request_id=engine_id,
                    token_ids=choice.prompt,
                    output_token_ids=choice.speech.token_ids,
                    finish_reason=choice.speech.finish_reason,
                    salt=call.salt,
                    adapter=call.adapter,
                    session_id=call.session_id,
                    read_cache=call.read_cache,
                    report_reused=call.report_reused,
                    hold=self.transfers is not None and call.hands_over,
                    fetched=self.transfers is not None and call.fetches,
                ),
                now_s,
            )
            self.metrics.observe_params(choices=call.choices_per_prompt, max_tokens=max(call.max_tokens))
        self._wake.set()
        return generation

    def abandon(self, generation: Generation) -> None:
        for engine_id in generation.running:
            self._generations.pop(engine_id, None)
            self.engine.abort(engine_id)
        if not generation.handed:
            for engine_id in generation.engine_ids:
                self.engine.give_back(engine_id)
        if generation.running:
            self.metrics.show(self.engine.stats())
        generation.running.clear()

    def _check_admission(self, call: Call) -> None:
        limit, token_limit = self.config.max_num_queued_reqs, self.config.max_num_queued_tokens
        if limit is not None and self.engine.unfinished_requests + len(call.prompts) * call.choices_per_prompt > limit:
            self.metrics.reject("max_num_queued_reqs")
            raise busy()
        if token_limit is not None and self.engine.prefilling_tokens >= token_limit:
            self.metrics.reject("max_num_queued_tokens")
            raise busy(BACKLOG_MESSAGE)

    def _speech(self, call: Call, place: int, number: int) -> Speech:
        prompt = call.prompts[place]
        return speak(
            self.tokenizer,
            seed_of(prompt, call.model, call.seed, number),
            max_tokens=call.max_tokens[place],
            min_tokens=call.min_tokens,
            ignore_eos=call.ignore_eos,
            stop=call.stop,
        )

    # -- adapters --------------------------------------------------------------------------------------------------

    def load_adapter(self, name: str, path: str) -> bool:
        """Serve one more adapter; False if there is one of this name. It comes into a slot on first use."""
        if any(one.name == name for one in self.config.adapters):
            return False
        last_id = max((one.adapter_id for one in self.config.adapters), default=0)
        self.config = replace(self.config, adapters=(*self.config.adapters, Adapter(name, path, last_id + 1)))
        return True

    def unload_adapter(self, name: str) -> bool:
        """Serve an adapter no longer; False if there is none. Requests that run with it end as they would have."""
        kept = tuple(one for one in self.config.adapters if one.name != name)
        if len(kept) == len(self.config.adapters):
            return False
        self.config = replace(self.config, adapters=kept)
        self.engine.adapters.unload(name)
        return True

    # -- switches --------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stand still: requests hang while everything else looks healthy."""
        self._resumed.clear()

    def resume(self) -> None:
        self._resumed.set()

    @property
    def paused(self) -> bool:
        return not self._resumed.is_set()

    def set_mode(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change faults and the salt mode; returns all of them as they now are.

        Raises:
            ValueError: an unknown name, or a value that cannot be; nothing was changed.
        """
        wanted = {"salt_mode": self.engine.salt_mode, **asdict(self.faults), **changes}
        salt_mode = wanted.pop("salt_mode")
        if salt_mode not in get_args(SaltMode):
            raise ValueError(f"salt_mode is one of {', '.join(get_args(SaltMode))}")
        unknown = set(wanted) - set(asdict(self.faults))
        if unknown:
            raise ValueError(f"unknown modes: {', '.join(sorted(unknown))}")
        self.faults = msgspec.convert(wanted, Faults)  # its ValidationError is a ValueError
        self.engine.salt_mode = salt_mode
        return {"salt_mode": salt_mode, **wanted}

    # -- the loop --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Step the engine for ever; each step's results leave when its duration has passed."""
        loop = asyncio.get_running_loop()
        engine_s = loop.time()
        while True:
            await self._resumed.wait()
            if not self.engine.has_work:
                self._wake.clear()
                await self._wake.wait()
                engine_s = loop.time()
                continue
            # The timer wakes late by up to a millisecond: the engine's clock goes on from where the last step ended,
            # so that the lateness does not add up.
            engine_s = max(engine_s, loop.time() - _MOST_LAG_S)
            result = self.engine.step(engine_s)
            engine_s += result.duration_s
            await asyncio.sleep(max(0.0, engine_s - loop.time()))
            self.publisher.publish(result.kv_events)
            self.metrics.observe_step(result, engine_s)
            for output in result.outputs:
                self._deliver(output)

    def _deliver(self, output: Output) -> None:
        """Events left before: a subscriber may know of the prompt's blocks before its client reads the first byte."""
        self.watch(output)
        generation = self._generations.get(output.request_id)
        if generation is None:
            return  # aborted while the step ran
        generation.queue.put_nowait((generation.running[output.request_id], output))
        if output.finished is not None:
            del self._generations[output.request_id]
            del generation.running[output.request_id]
