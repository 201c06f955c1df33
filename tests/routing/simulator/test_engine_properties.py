"""Laws that hold under any interleaving of submit, step, abort and reset."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from routing.simulator.config import EngineConfig, TimeModel
from routing.simulator.engine import Engine
from routing.simulator.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, short_hash
from routing.simulator.submission import Output, Submission

SALTS = st.sampled_from([None, "alpha", "beta"])
BLOCK_TOKENS = 4


class EngineMachine(RuleBasedStateMachine):
    """A small engine that must evict and preempt, watched through its events alone."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.submitted: dict[str, Submission] = {}
        self.said: dict[str, list[int]] = {}
        self.gone: set[str] = set()
        self.copies: Counter[int] = Counter()
        self.salt_of: dict[int, str | None] = {}
        self.ever_prompted: set[tuple[str | None, tuple[int, ...]]] = set()

    @initialize(budget_tokens=st.integers(3, 40), seqs=st.integers(1, 5))
    def start(self, budget_tokens: int, seqs: int) -> None:
        self.engine = Engine(
            EngineConfig(
                blocks=11,
                block_size_tokens=BLOCK_TOKENS,
                max_model_len_tokens=36,
                max_num_batched_tokens=budget_tokens,
                max_num_seqs=seqs,
                time=TimeModel(speed=1000),
            )
        )

    @rule(target=requests, head=st.integers(0, 2), length=st.integers(1, 24), out=st.integers(1, 12), salt=SALTS)
    def submit(self, head: int, length: int, out: int, salt: str | None) -> str:
        name = f"r{len(self.submitted)}"
        # Prompts share heads, so that hits are common.
        tokens = tuple(100 * head + position for position in range(length))
        submission = Submission(request_id=name, token_ids=tokens, output_token_ids=tuple(range(900, 900 + out)), salt=salt)
        self.submitted[name] = submission
        self.said[name] = []
        self.engine.submit(submission, self.now_s)
        return name

    @rule(name=requests)
    def abort(self, name: str) -> None:
        assert self.engine.abort(name) == (name not in self.gone)
        self.gone.add(name)

    @rule(running=st.booleans())
    def reset(self, running: bool) -> None:
        was_used = self.engine.pool.used_blocks > 0
        assert self.engine.reset_prefix_cache(reset_running=running) == (running or not was_used)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            result = self.engine.step(self.now_s)
            assert result.stats.scheduled_tokens <= self.engine.config.max_num_batched_tokens
            self.now_s += result.duration_s
            for event in result.kv_events:
                self.see_event(event)
            for output in result.outputs:
                self.see_output(output)

    def see_event(self, event: KvEvent) -> None:
        match event:
            case AllBlocksCleared():
                self.copies.clear()
            case BlockRemoved(block_hashes=hashes):
                self.copies.subtract(int(block) for block in hashes)
            case BlockStored(block_hashes=hashes, parent_block_hash=parent, extra_keys=extra):
                assert len(event.token_ids) == len(hashes) * BLOCK_TOKENS
                salt = (extra[0][0] if extra[0] else None) if parent is None else self.salt_of[int(parent)]
                for block in hashes:
                    # A hash belongs to one salt for ever: no block is shared between two.
                    assert self.salt_of.setdefault(int(block), salt) == salt
                self.copies.update(int(block) for block in hashes)

    def see_output(self, output: Output) -> None:
        submission = self.submitted[output.request_id]
        self.said[output.request_id].append(output.token_id)
        assert output.index == len(self.said[output.request_id]) - 1
        assert output.cached_tokens <= (len(submission.token_ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        if output.index == 0 and output.cached_tokens:
            key = (submission.salt, submission.token_ids[: output.cached_tokens])
            assert any(salt == key[0] and tokens[: output.cached_tokens] == key[1] for salt, tokens in self.ever_prompted)
        if output.finished:
            assert tuple(self.said[output.request_id]) == submission.output_token_ids
            self.gone.add(output.request_id)

    @invariant()
    def remember_prompts(self) -> None:
        self.ever_prompted |= {(submission.salt, submission.token_ids) for submission in self.submitted.values()}

    @invariant()
    def pool_is_whole(self) -> None:
        pool = self.engine.pool
        assert pool.free_blocks + pool.used_blocks == pool.size == 10
        if not self.engine.has_work:
            assert pool.references() == 0

    @invariant()
    def counted_events_are_what_is_cached(self) -> None:
        """A subscriber that counts copies knows the cache exactly, once pending events have left."""
        if self.engine.has_work:
            return
        for event in self.engine.step(self.now_s).kv_events:
            self.see_event(event)
        pool = self.engine.pool
        assert +self.copies == Counter({short_hash(digest): pool.copies(digest) for digest in pool.cached_digests})

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.step(1)
        assert not self.engine.has_work
        assert self.engine.pool.references() == 0


EngineMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestEngine = EngineMachine.TestCase
