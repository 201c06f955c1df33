"""A replica in simulated time, at the grain of blocks: the simulator's engine without tokens, fast enough for long traces.

The scheduling rules, the block pool and the time model are the simulator's (``routing.simulator.engine``, ``cache``, ``config``). What differs is
the book-keeping. Prompts are chains of digests that the trace already names, so nothing is hashed; sequences that decode are counted and not
visited; and a run of steps in which nothing changes but the lengths of decoding sequences is one *stretch*, whose duration has a closed form. Tests
hold both engines side by side: cached tokens and preemptions are equal, times agree to rounding.

A stretch may be cut short, at a step's boundary, when a request arrives meanwhile. What an answer generates fills blocks under names of its own,
which no later prompt of the trace can match.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from routing.simulator.cache import Block, BlockPool
from routing.simulator.config import EngineConfig


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The end of a prefill. Times in seconds on the driver's clock."""

    request: int
    at_s: float
    cached_tokens: int
    queued_s: float  # from submission to first being scheduled


@dataclass(frozen=True, slots=True)
class Ended:
    """A whole answer."""

    request: int
    at_s: float
    preemptions: int


class _Sequence:
    __slots__ = (
        "arrived_s", "blocks", "cached_tokens", "computed_tokens", "digests", "emitted", "finish_at", "number", "order", "output_tokens",
        "preemptions", "prompt_tokens", "queued_s", "start", "stored", "total_tokens",
    )  # fmt: skip

    def __init__(self, number: int, prompt_tokens: int, output_tokens: int, digests: list[bytes], arrived_s: float) -> None:
        self.number = number
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.digests = digests
        self.arrived_s = arrived_s
        self.blocks: list[Block] = []
        self.stored = 0  # leading blocks that can be found
        self.computed_tokens = 0  # while prefilling
        self.total_tokens = prompt_tokens  # to be computed before the next token comes out
        self.emitted = 0
        self.cached_tokens: int | None = None
        self.queued_s = 0.0
        self.preemptions = 0
        self.order = 0  # of admission: the youngest is preempted first. Changes with every admission, so it also tells stale heap entries
        self.start = 0  # while decoding: engine's step count minus computed tokens
        self.finish_at = 0  # step count at which the last token comes out


class BlockEngine:
    """Submit, begin a stretch, complete it. ``begin(now_s)`` says when the stretch ends, ``complete()`` what came of it."""

    def __init__(self, config: EngineConfig) -> None:
        if config.max_num_seqs > config.max_num_batched_tokens:
            raise ValueError("max_num_seqs beyond max_num_batched_tokens: not every sequence could decode in a step")
        self.config = config
        self.pool = BlockPool(config.usable_blocks)
        self.speed = 1.0  # multiplies the time model's, from the next step on
        self.evicted_blocks = 0
        self.busy_s = 0.0
        self.stored_events: list[bytes] = []
        self.removed_events: list[bytes] = []
        self._waiting: deque[_Sequence] = deque()
        self._requests: dict[int, _Sequence] = {}
        self._decoding: dict[int, _Sequence] = {}  # by order of admission
        self._context_tokens = 0  # of all decoding sequences
        self._prefilling: _Sequence | None = None  # the youngest, where its prompt is computed in part
        self._steps = 0
        self._orders = 0
        self._names = 0
        self._growths: list[tuple[int, int]] = []  # (step before which a block is needed, order)
        self._finishes: list[tuple[int, int]] = []
        self._parts: list[tuple[_Sequence, int]] = []
        self._began_s = self._first_s = self._slope_s = 0.0
        self._count = 0  # steps of the stretch under way; 0: none

    # -- the driver's side ---------------------------------------------------------------------------------------------

    @property
    def stretching(self) -> bool:
        return self._count > 0

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def unfinished(self) -> list[int]:
        return list(self._requests)

    def submit(self, number: int, prompt_tokens: int, output_tokens: int, digests: Sequence[bytes], now_s: float) -> None:
        """Queue a request; ``digests`` name its leading whole blocks. Cut the stretch under way first.

        Raises:
            ValueError: longer than the model allows.
        """
        if prompt_tokens + output_tokens > self.config.max_model_len_tokens:
            raise ValueError(f"{prompt_tokens + output_tokens} tokens exceed {self.config.max_model_len_tokens}")
        names = list(digests[: prompt_tokens // self.config.block_size_tokens])
        sequence = _Sequence(number, prompt_tokens, output_tokens, names, now_s)
        self._name(sequence, prompt_tokens)
        self._requests[number] = sequence
        self._waiting.append(sequence)

    def begin(self, now_s: float) -> float:
        """Schedule at ``now_s``; returns when the stretch ends. Call with work to do and no stretch under way."""
        prefills_preempted = self._schedule(now_s)
        if not self._parts and not self._decoding:
            raise RuntimeError("the scheduler made no progress")
        model, count = self.config.time, len(self._decoding)
        seconds = model.step_s + count * model.decode_s_per_sequence + self._context_tokens * model.decode_s_per_context_token
        for sequence, tokens in self._parts:
            context = sequence.computed_tokens
            if context >= sequence.prompt_tokens:
                seconds += model.decode_s_per_sequence + context * model.decode_s_per_context_token
            else:
                pairs = tokens * context + tokens * (tokens + 1) // 2
                seconds += tokens / model.prefill_tokens_per_s + pairs * model.attention_s_per_token_pair
        speed = model.speed * self.speed
        self._began_s, self._first_s = now_s, seconds / speed
        self._slope_s = count * model.decode_s_per_context_token / speed
        self._count = 1 if self._parts or prefills_preempted else self._undisturbed_steps()
        return now_s + self._duration_s(self._count)

    def cut(self, now_s: float) -> float:
        """End the stretch under way at the first step's boundary from ``now_s`` on; returns the end."""
        if self._count > 1:
            passed_s = max(0.0, now_s - self._began_s)
            half = self._slope_s / 2
            linear = self._first_s - half
            guess = passed_s / linear if half <= 0 else (math.sqrt(linear * linear + 4 * half * passed_s) - linear) / (2 * half)
            steps = max(1, int(guess) - 1)
            while steps < self._count and self._began_s + self._duration_s(steps) < now_s:
                steps += 1
            self._count = steps
        return self._began_s + self._duration_s(self._count)

    @property
    def first_step_ends_s(self) -> float:
        return self._began_s + self._first_s

    def complete(self) -> tuple[list[FirstToken], list[Ended]]:
        """End the stretch: what came out at its last step. (Steps before it bring out tokens of running answers only.)"""
        now_s = self._began_s + self._duration_s(self._count)
        self.busy_s += now_s - self._began_s
        self._steps += self._count
        self._context_tokens += len(self._decoding) * self._count
        self._count = 0
        first: list[FirstToken] = []
        ended: list[Ended] = []
        while self._finishes and self._finishes[0][0] <= self._steps:
            _, order = heapq.heappop(self._finishes)
            sequence = self._decoding.pop(order, None)
            if sequence is not None:
                self._context_tokens -= self._steps - sequence.start
                self._end(sequence, self._steps - sequence.start, now_s, ended)
        parts, self._parts, self._prefilling = self._parts, [], None
        for sequence, tokens in parts:
            sequence.computed_tokens += tokens
            if sequence.computed_tokens < sequence.total_tokens:
                self._prefilling = sequence
                continue
            if sequence.emitted == 0:
                first.append(FirstToken(sequence.number, now_s, sequence.cached_tokens or 0, sequence.queued_s))
            sequence.emitted += 1
            if sequence.emitted == sequence.output_tokens:
                self._end(sequence, sequence.computed_tokens, now_s, ended)
            else:
                self._decode(sequence)
        return first, ended

    # -- scheduling ----------------------------------------------------------------------------------------------------

    def _schedule(self, now_s: float) -> bool:
        """Fill ``_parts`` and give decoding sequences their blocks; True if somebody was preempted."""
        preempted = False
        upcoming = self._steps + 1
        while self._growths and self._growths[0][0] <= upcoming:
            _, order = heapq.heappop(self._growths)
            sequence = self._decoding.get(order)
            if sequence is None:
                continue
            while not self._grow(sequence, upcoming - sequence.start):
                preempted = True
                if self._preempt_youngest() is sequence:
                    break
            else:
                self._expect_growth(sequence)
        budget_tokens = self.config.max_num_batched_tokens - len(self._decoding)
        self._parts = []
        sequence = self._prefilling
        if sequence is not None and budget_tokens > 0:
            tokens = min(sequence.total_tokens - sequence.computed_tokens, budget_tokens)
            if self._grow(sequence, sequence.computed_tokens + tokens):
                self._parts.append((sequence, tokens))
                budget_tokens -= tokens
            else:
                preempted = True
                self._preempt_youngest()
        running = len(self._decoding) + len(self._parts)
        while not preempted and self._waiting and budget_tokens > 0 and running < self.config.max_num_seqs:
            sequence = self._waiting[0]
            if not self._admit(sequence, now_s):
                break
            self._waiting.popleft()
            tokens = min(sequence.total_tokens - sequence.computed_tokens, budget_tokens)
            self._grow(sequence, sequence.computed_tokens + tokens)
            self._parts.append((sequence, tokens))
            budget_tokens -= tokens
            running += 1
        return preempted and bool(self._waiting)

    def _admit(self, sequence: _Sequence, now_s: float) -> bool:
        """Take the cached prefix if the whole sequence fits. The last token is always computed."""
        size = self.config.block_size_tokens
        found = self.pool.longest_prefix(sequence.digests[: (sequence.total_tokens - 1) // size])
        from_free = sum(block.references == 0 for block in found)
        if -(-sequence.total_tokens // size) - len(found) + from_free > self.pool.free_blocks:
            return False
        self.pool.touch(found)
        sequence.blocks, sequence.stored = found, len(found)
        sequence.computed_tokens = len(found) * size
        self._orders += 1
        sequence.order = self._orders
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed_tokens
            sequence.queued_s = now_s - sequence.arrived_s
        return True

    def _grow(self, sequence: _Sequence, upto_tokens: int) -> bool:
        missing = -(-upto_tokens // self.config.block_size_tokens) - len(sequence.blocks)
        if missing > 0:
            if missing > self.pool.free_blocks:
                return False
            taken, evicted = self.pool.take(missing)
            sequence.blocks.extend(taken)
            self.evicted_blocks += len(evicted)
            self.removed_events.extend(evicted)
        self._store(sequence, upto_tokens)
        return True

    def _store(self, sequence: _Sequence, upto_tokens: int) -> None:
        """Make the whole blocks among the first ``upto_tokens`` tokens findable."""
        full = upto_tokens // self.config.block_size_tokens
        if full <= sequence.stored:
            return
        self._name(sequence, upto_tokens)
        for index in range(sequence.stored, full):
            self.pool.store(sequence.blocks[index], sequence.digests[index])
        self.stored_events.extend(sequence.digests[sequence.stored : full])
        sequence.stored = full

    def _name(self, sequence: _Sequence, upto_tokens: int) -> None:
        """Name blocks that the trace does not: what was generated, and prompts beyond the trace's blocks."""
        for _ in range(upto_tokens // self.config.block_size_tokens - len(sequence.digests)):
            self._names += 1
            sequence.digests.append(b"own" + self._names.to_bytes(8, "big"))

    def _undisturbed_steps(self) -> int:
        """How many steps only lengthen the decoding sequences, at least 1."""
        while self._growths[0][1] not in self._decoding:
            heapq.heappop(self._growths)
        while self._finishes[0][1] not in self._decoding:
            heapq.heappop(self._finishes)
        return min(self._growths[0][0] - 1, self._finishes[0][0]) - self._steps

    def _duration_s(self, steps: int) -> float:
        return steps * self._first_s + self._slope_s * (steps * (steps - 1) // 2)

    # -- sequences -----------------------------------------------------------------------------------------------------

    def _decode(self, sequence: _Sequence) -> None:
        sequence.start = self._steps - sequence.computed_tokens
        sequence.finish_at = self._steps + sequence.output_tokens - sequence.emitted
        self._decoding[sequence.order] = sequence
        self._context_tokens += sequence.computed_tokens
        heapq.heappush(self._finishes, (sequence.finish_at, sequence.order))
        self._expect_growth(sequence)

    def _expect_growth(self, sequence: _Sequence) -> None:
        at = sequence.start + len(sequence.blocks) * self.config.block_size_tokens + 1
        heapq.heappush(self._growths, (at, sequence.order))

    def _preempt_youngest(self) -> _Sequence:
        """Send the youngest running sequence back to the queue; it starts over, with what it has generated as part of its prompt."""
        sequence, self._prefilling = self._prefilling, None
        if sequence is None:
            order = max(self._decoding)
            sequence = self._decoding.pop(order)
            computed = self._steps - sequence.start
            self._context_tokens -= computed
            self._store(sequence, computed)
            sequence.emitted = sequence.output_tokens - (sequence.finish_at - self._steps)
            sequence.total_tokens = sequence.prompt_tokens + sequence.emitted
            self._name(sequence, sequence.total_tokens)
        self._release(sequence)
        sequence.preemptions += 1
        self._waiting.appendleft(sequence)
        return sequence

    def _end(self, sequence: _Sequence, computed_tokens: int, now_s: float, ended: list[Ended]) -> None:
        self._store(sequence, computed_tokens)
        self._release(sequence)
        del self._requests[sequence.number]
        ended.append(Ended(sequence.number, now_s, sequence.preemptions))

    def _release(self, sequence: _Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.stored = sequence.computed_tokens = 0
