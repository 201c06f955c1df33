"""The simulated engine: scheduler and prefix cache of vLLM V1 in simulated time.

Pure: no clock, no socket, no thread, no randomness. Whoever drives it says what time it is and decides what the
passing of a step means: the HTTP server sleeps it, a trace replayer adds it to a variable.

What it leaves out: speculative decoding, several KV groups, multimodal items, priorities, asynchronous scheduling, and KV
offload. One engine is one data-parallel rank.

Source: vLLM 0.32.0's recorded behaviour (tests/vectors/vllm-0.32), and its documented scheduler rules: running requests
first, then waiting ones in order of arrival while the token budget lasts; a waiting request is admitted only when its
whole sequence fits (``scheduler_reserve_full_isl``, on by default); when a running request finds no block, the youngest
running one is preempted and recomputed later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import UNSET

from routing.simulator.adapters import AdapterSlots
from routing.simulator.cache import Block, BlockPool
from routing.simulator.config import EngineConfig, SaltMode
from routing.simulator.events import (
    MEDIUM,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventHash,
    KvEvent,
    short_hash,
)
from routing.simulator.hashes import block_hash, extra_keys, root_hash, shown_extra_keys
from routing.simulator.submission import Finished, Output, Stats, StepResult, Submission
from routing.simulator.timing import Work, step_duration_s
from routing.simulator.underway import Request, adapters_of


class Engine:
    """Submit, step, abort. Not thread-safe; one driver owns it."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.salt_mode: SaltMode = config.salt_mode
        self.pool = BlockPool(config.usable_blocks)
        self._root = root_hash(config.hash_algorithm)
        self._requests: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        self.adapters = AdapterSlots(config.adapter_slots)
        self._running: list[Request] = []
        self._held: dict[str, list[Block]] = {}  # of requests that ended and whose blocks another engine is to fetch
        self._events: list[KvEvent] = []  # since the last step; a reset on an idle engine waits here
        self._queried_tokens = self._hit_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def unfinished_requests(self) -> int:
        return len(self._requests)

    @property
    def prefilling_tokens(self) -> int:
        """Prompt tokens of all requests that have not produced a token yet."""
        return sum(request.prompt_tokens for request in self._requests.values() if not request.emitted)

    def stats(self) -> Stats:
        return Stats(
            running=len(self._running),
            waiting=len(self._waiting),
            usage=self.pool.usage,
            running_adapters=adapters_of(self._running),
            waiting_adapters=adapters_of(self._waiting),
        )

    def submit(self, submission: Submission, now_s: float) -> None:
        """Queue a request.

        Raises:
            ValueError: empty prompt or output, longer than the model allows, or an id that is still running.
        """
        length_tokens = len(submission.token_ids) + len(submission.output_token_ids)
        if not submission.token_ids or not submission.output_token_ids:
            raise ValueError("a request needs a prompt and an output")
        if length_tokens > self.config.max_model_len_tokens:
            raise ValueError(f"{length_tokens} tokens exceed {self.config.max_model_len_tokens}")
        if submission.request_id in self._requests:
            raise ValueError(f"request {submission.request_id} is already running")
        request = Request(submission, now_s)
        self._extend_digests(request)
        self._requests[submission.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> bool:
        """Drop a request; its full blocks stay cached. False when it is not (or no longer) here."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._release(request)
        return True

    def held_blocks(self, request_id: str) -> tuple[int, ...]:
        """The ids of the blocks that an ended request holds; none where it holds none."""
        return tuple(block.block_id for block in self._held.get(request_id, ()))

    def give_back(self, request_id: str) -> bool:
        """End the hold of an ended request; its blocks stay cached. False where it holds none."""
        blocks = self._held.pop(request_id, None)
        if blocks is None:
            return False
        self.pool.release(blocks)
        return True

    def reset_prefix_cache(self, *, reset_running: bool = False) -> bool:
        """Forget all cached content; the event leaves with the next step. False while blocks are in use.

        With ``reset_running`` the running requests are sent back to the queue first and start over.
        """
        if reset_running:
            while self._running:
                self._preempt(self._running.pop())
        if not self.pool.clear():
            return False
        self._events.append(AllBlocksCleared())
        return True

    def step(self, now_s: float) -> StepResult:
        """Schedule one batch at ``now_s`` and run it. The outputs exist at ``now_s + duration_s``.

        With nothing to do the duration is 0; events that were pending are still handed over.
        """
        self._queried_tokens = self._hit_tokens = 0
        loads = self.adapters.loads
        scheduled = self._schedule(now_s)
        if self._requests and not scheduled:
            raise RuntimeError("the scheduler made no progress")  # EngineConfig rules this out
        duration_s = step_duration_s(self.config.time, [self._work(request, tokens) for request, tokens in scheduled])
        duration_s += (self.adapters.loads - loads) * self.config.time.adapter_load_s / self.config.time.speed
        outputs, preemptions = self._run(scheduled, now_s + duration_s)
        events, self._events = tuple(self._events), []
        stats = Stats(
            running=len(self._running),
            waiting=len(self._waiting),
            usage=self.pool.usage,
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            preemptions=preemptions,
            scheduled_tokens=sum(tokens for _, tokens in scheduled),
            running_adapters=adapters_of(self._running),
            waiting_adapters=adapters_of(self._waiting),
        )
        return StepResult(duration_s, tuple(outputs), events, stats)

    # -- scheduling ------------------------------------------------------------------------------------------------

    def _schedule(self, now_s: float) -> list[tuple[Request, int]]:
        budget_tokens = self.config.max_num_batched_tokens
        scheduled: list[tuple[Request, int]] = []
        preempted = False
        position = 0
        while position < len(self._running) and budget_tokens > 0:
            request = self._running[position]
            tokens = min(len(request.tokens) - request.computed_tokens, budget_tokens)
            while not self._grow(request, request.computed_tokens + tokens):
                preempted = True
                victim = self._running.pop()
                self._preempt(victim)
                if victim is request:
                    break
            if position >= len(self._running):  # it was its own victim
                break
            scheduled.append((request, tokens))
            budget_tokens -= tokens
            position += 1
        passed: list[Request] = []  # no slot for their adapter now
        while not preempted and self._waiting and budget_tokens > 0 and len(self._running) < self.config.max_num_seqs:
            request = self._waiting[0]
            adapter, in_use = request.submission.adapter, adapters_of(self._running)
            if adapter is not None and not self.adapters.has_room(adapter.name, in_use):
                passed.append(self._waiting.popleft())
                continue
            found_tokens = self._admit(request)
            if found_tokens is None:
                break
            if adapter is not None:
                self.adapters.take(adapter.name, in_use)
            self._waiting.popleft()
            self._running.append(request)
            if request.cached_tokens is None:  # a resumed request is neither counted nor reported again
                request.cached_tokens = request.found_tokens
                request.scheduled_s = now_s
                self._queried_tokens += len(request.tokens)
                self._hit_tokens += request.found_tokens
            tokens = min(len(request.tokens) - found_tokens, budget_tokens)
            self._grow(request, found_tokens + tokens)
            scheduled.append((request, tokens))
            budget_tokens -= tokens
        self._waiting.extendleft(reversed(passed))
        return scheduled

    def _admit(self, request: Request) -> int | None:
        """Take the cached prefix of a waiting request if its whole sequence fits; None if it does not.

        At least one token is always computed, so the last block of an exact repeat is never taken from the cache.
        """
        size = self.config.block_size_tokens
        readable = (len(request.tokens) - 1) // size if request.submission.read_cache else 0
        found = self.pool.longest_prefix(request.digests[:readable])
        if self.config.drops_last_block:
            found = found[:-1]
        taken_from_free = sum(block.references == 0 for block in found)
        if -(-len(request.tokens) // size) - len(found) + taken_from_free > self.pool.free_blocks:
            return None
        self.pool.touch(found)
        request.blocks = found
        request.stored_blocks = len(found)
        request.computed_tokens = request.found_tokens = len(found) * size
        if request.submission.fetched and not request.preemptions:  # all but the last token is there; that one is computed here
            self._grow(request, len(request.tokens) - 1)
            request.computed_tokens = max(request.found_tokens, len(request.tokens) - 1)
        if found and request.submission.report_reused:
            self._report_stored(request, 0, len(found))
        return request.computed_tokens

    def _grow(self, request: Request, upto_tokens: int) -> bool:
        """Give a request blocks for its first ``upto_tokens`` tokens and make the full ones findable.

        They are findable from the moment they are scheduled, before they are computed: two equal prompts in one step
        share. False when the free blocks do not suffice; nothing changed then.
        """
        size = self.config.block_size_tokens
        missing = -(-upto_tokens // size) - len(request.blocks)
        if missing > 0:
            if missing > self.pool.free_blocks:
                return False
            taken, evicted = self.pool.take(missing)
            request.blocks.extend(taken)
            self._events.extend(BlockRemoved(block_hashes=(self._event_hash(digest),), medium=MEDIUM) for digest in evicted)
        full = upto_tokens // size
        if full > request.stored_blocks:
            for index in range(request.stored_blocks, full):
                self.pool.store(request.blocks[index], request.digests[index])
            self._report_stored(request, request.stored_blocks, full)
            request.stored_blocks = full
        return True

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.preemptions += 1
        request.unreported_preemptions += 1
        self._waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.stored_blocks = request.computed_tokens = 0

    # -- running ---------------------------------------------------------------------------------------------------

    def _work(self, request: Request, tokens: int) -> Work:
        return Work(tokens, request.computed_tokens, decoding=request.computed_tokens >= request.prompt_tokens)

    def _run(self, scheduled: Iterable[tuple[Request, int]], done_s: float) -> tuple[list[Output], int]:
        outputs: list[Output] = []
        preemptions = 0
        for request, tokens in scheduled:
            request.computed_tokens += tokens
            if request.computed_tokens < len(request.tokens):
                continue
            outputs.append(self._emit(request, done_s))
            # Counted with the first output after the request resumed, as vLLM's counter is.
            preemptions += request.unreported_preemptions
            request.unreported_preemptions = 0
        return outputs, preemptions

    def _emit(self, request: Request, done_s: float) -> Output:
        submission = request.submission
        index = request.emitted
        token_id = submission.output_token_ids[index]
        request.emitted += 1
        request.tokens.append(token_id)
        previous_s, request.last_token_s = request.last_token_s, done_s
        if index == 0:
            request.first_token_s = done_s
        cached = request.cached_tokens or 0
        size = self.config.block_size_tokens
        finished = None
        if request.emitted == len(submission.output_token_ids):
            finished = self._finish(request, done_s)
        else:
            self._extend_digests(request)
        return Output(
            request_id=submission.request_id,
            index=index,
            token_id=token_id,
            cached_tokens=cached,
            stored_tokens=0 if submission.fetched else request.prompt_tokens // size * size - cached,
            prompt_tokens=request.prompt_tokens,
            arrived_s=request.arrived_s,
            previous_token_s=previous_s,
            finished=finished,
            fetched_tokens=request.prompt_tokens - cached if submission.fetched else 0,
        )

    def _finish(self, request: Request, done_s: float) -> Finished:
        """Free the request. Its last token was sampled but never computed, so it has no KV and completes no block."""
        self._running.remove(request)
        del self._requests[request.submission.request_id]
        if request.submission.hold:
            self._held[request.submission.request_id] = request.blocks
        else:
            self._release(request)
        return Finished(
            reason=request.submission.finish_reason,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.emitted,
            computed_prompt_tokens=request.prompt_tokens - (request.cached_tokens or 0),
            preemptions=request.preemptions,
            arrived_s=request.arrived_s,
            scheduled_s=request.scheduled_s,
            first_token_s=request.first_token_s,
            finished_s=done_s,
        )

    # -- hashes and events -----------------------------------------------------------------------------------------

    def _extend_digests(self, request: Request) -> None:
        size = self.config.block_size_tokens
        submission = request.submission
        while (len(request.digests) + 1) * size <= len(request.tokens):
            index = len(request.digests)
            parent = request.digests[-1] if request.digests else self._root
            extra = extra_keys(index, salt=submission.salt, adapter=submission.adapter, mode=self.salt_mode)
            block = request.tokens[index * size : (index + 1) * size]
            request.digests.append(block_hash(parent, block, extra, self.config.hash_algorithm))
            request.extras.append(extra)

    def _report_stored(self, request: Request, first: int, end: int) -> None:
        size = self.config.block_size_tokens
        adapter = request.submission.adapter
        self._events.append(
            BlockStored(
                block_hashes=tuple(self._event_hash(digest) for digest in request.digests[first:end]),
                parent_block_hash=self._event_hash(request.digests[first - 1]) if first else None,
                token_ids=tuple(request.tokens[first * size : end * size]),
                block_size=size,
                lora_id=adapter.adapter_id if adapter else None,
                medium=MEDIUM,
                lora_name=adapter.name if adapter else None,
                extra_keys=tuple(shown_extra_keys(extra) for extra in request.extras[first:end]),
                session_id=request.submission.session_id or UNSET,
            )
        )

    def _event_hash(self, digest: bytes) -> EventHash:
        return short_hash(digest) if self.config.event_int_hashes else digest
