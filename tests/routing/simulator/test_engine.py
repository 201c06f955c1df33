"""The pure core against the recorded engine, and by hand-made cases."""

from __future__ import annotations

import base64
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from routing.simulator.config import Adapter, EngineConfig, TimeModel
from routing.simulator.engine import Engine
from routing.simulator.events import KvEvent, encode_batch
from routing.simulator.submission import Finished, Output, Submission
from tests.routing.simulator.vectors import load

FAST = TimeModel(speed=1000.0)


def run(engine: Engine, *submissions: Submission) -> tuple[list[Output], list[KvEvent]]:
    """Submit at once, step until idle; outputs and events in order."""
    now_s = 0.0
    for submission in submissions:
        engine.submit(submission, now_s)
    outputs: list[Output] = []
    events: list[KvEvent] = []
    while engine.has_work:
        result = engine.step(now_s)
        now_s += result.duration_s
        outputs += result.outputs
        events += result.kv_events
    return outputs, events


def ask(name: str, tokens: range | list[int], *, out: int = 1, **more: Any) -> Submission:
    return Submission(request_id=name, token_ids=tuple(tokens), output_token_ids=tuple(range(900, 900 + out)), **more)


def small(**changes: Any) -> Engine:
    given: dict[str, Any] = {"blocks": 13, "block_size_tokens": 4, "max_model_len_tokens": 48, "max_num_batched_tokens": 64, "time": FAST}
    return Engine(EngineConfig(**(given | changes)))


def as_wire(events: list[KvEvent]) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = msgspec.msgpack.decode(msgspec.msgpack.encode(events))
    return decoded


def test_recorded_scenario_gives_the_recorded_bytes() -> None:
    """All 22 recorded requests in order: the same cached and created tokens, and every KV message byte for byte."""
    engine = Engine(EngineConfig(blocks=40, block_size_tokens=32, max_model_len_tokens=1024, time=FAST))
    messages = 0
    for step in load("kv_scenario.json"):
        if step.get("reset"):
            assert engine.reset_prefix_cache()
            continue
        engine.submit(
            Submission(
                request_id=step["name"],
                token_ids=tuple(step["prompt_token_ids"]),
                output_token_ids=tuple(step["output_token_ids"]),
                salt=step["salt"],
                session_id=step["session_id"],
                report_reused=step["report_mode"] == "full",
            ),
            0.0,
        )
        results = []
        while engine.has_work:
            results.append(engine.step(0.0))
        details = step["usage"]["prompt_tokens_details"]
        first = results[0].outputs[0]
        assert first.cached_tokens == details["cached_tokens"], step["name"]
        assert details["created_cache_tokens"] in {None, first.stored_tokens}, step["name"]
        batches = [result.kv_events for result in results if result.kv_events]
        recorded = [base64.b64decode(message["payload_b64"]) for message in step["messages"]]
        assert len(batches) == len(recorded), step["name"]
        for batch, payload in zip(batches, recorded, strict=True):
            timestamp_s = msgspec.msgpack.decode(payload)[0]
            assert encode_batch(timestamp_s, batch) == payload, step["name"]
            messages += 1
    assert messages == 17


def test_recorded_lora_events_are_reproduced() -> None:
    """Digests in 32 bytes over CBOR: the base model's event byte for byte, the adapters' in all but the hashes.

    The recording does not tell the adapters' paths, which are hashed.
    """
    config = EngineConfig(
        blocks=200, block_size_tokens=32, max_model_len_tokens=1024, hash_algorithm="sha256_cbor", event_int_hashes=False, time=FAST
    )
    engine = Engine(config)
    for number, row in enumerate(load("kv_lora.json")):
        payload = base64.b64decode(row["payload_b64"])
        timestamp_s, (recorded,), _rank = msgspec.msgpack.decode(payload)
        name = recorded["lora_name"]
        adapter = Adapter(name, "/path", recorded["lora_id"]) if name else None
        salt = {(): None, ("tA",): "tA"}[tuple(recorded["extra_keys"][0] or [])[1:]]
        _, events = run(engine, ask(str(number), recorded["token_ids"], salt=salt, adapter=adapter))
        (event,) = as_wire(events)
        assert [len(digest) for digest in event["block_hashes"]] == [32, 32, 32]
        assert list(event.items())[2:] == list(recorded.items())[2:]
        assert (encode_batch(timestamp_s, events) == payload) == (name is None)


def test_hit_leaves_at_least_one_token_to_compute() -> None:
    """An exact repeat of whole blocks hits all but the last; one token more hits all of them."""
    engine = small()
    run(engine, ask("a", range(8)))
    again, events = run(engine, ask("b", range(8)))
    longer, _ = run(engine, ask("c", range(9)))
    assert (again[0].cached_tokens, longer[0].cached_tokens) == (4, 8)
    assert len(as_wire(events)) == 1  # the recomputed last block is stored a second time


def test_equal_prompts_of_one_step_share() -> None:
    """Blocks can be shared from the moment they are scheduled."""
    outputs, _ = run(small(), ask("a", range(9)), ask("b", range(9)), ask("c", range(9)))
    assert [output.cached_tokens for output in outputs] == [0, 8, 8]


def test_generated_blocks_are_hit_by_the_next_turn() -> None:
    """A block filled while decoding is found again; the last sampled token has no KV."""
    engine = small()
    run(engine, ask("a", range(6), out=3))  # 8 of 9 tokens have KV
    outputs, _ = run(engine, ask("b", [*range(6), 900, 901, 902, 7]))
    assert outputs[0].cached_tokens == 8


def test_long_prompt_is_computed_in_chunks() -> None:
    """The token budget bounds a step; each chunk's full blocks are reported with their parent."""
    engine = small(max_num_batched_tokens=10)
    engine.submit(ask("a", range(25)), 0.0)
    steps = []
    while engine.has_work:
        steps.append(engine.step(0.0))
    assert [step.stats.scheduled_tokens for step in steps] == [10, 10, 5]
    sizes = [[len(event["block_hashes"]) for event in as_wire(list(step.kv_events))] for step in steps]
    assert sizes == [[2], [3], [1]]
    assert [len(step.outputs) for step in steps] == [0, 0, 1]


def test_decodes_go_before_a_new_prefill() -> None:
    """A running sequence gets its token in every step that also computes a newcomer's chunk."""
    engine = small(max_num_batched_tokens=8)
    engine.submit(ask("a", range(4), out=6), 0.0)
    engine.step(0.0)
    engine.submit(ask("b", range(100, 116)), 0.0)
    step = engine.step(0.0)
    assert step.stats.scheduled_tokens == 8
    assert [output.request_id for output in step.outputs] == ["a"]


def test_max_num_seqs_bounds_the_running() -> None:
    """What does not fit waits, in order of arrival."""
    engine = small(max_num_seqs=1)
    engine.submit(ask("a", range(4), out=2), 0.0)
    engine.submit(ask("b", range(4), out=2), 0.0)
    stats = engine.step(0.0).stats
    assert (stats.running, stats.waiting) == (1, 1)
    outputs, _ = run(engine)
    assert [output.request_id for output in outputs] == ["a", "b", "b"]


def test_request_is_admitted_only_when_its_whole_sequence_fits() -> None:
    """Not the first chunk alone: otherwise two half-computed prompts could block each other."""
    engine = small(max_num_batched_tokens=8)
    engine.submit(ask("a", range(30)), 0.0)
    engine.step(0.0)
    engine.submit(ask("b", range(100, 130)), 0.0)
    assert engine.step(0.0).stats.waiting == 1


def test_youngest_is_preempted_and_finishes_later() -> None:
    """Out of blocks while decoding: the younger request starts over and both say all they had to say."""
    engine = small()  # 12 usable blocks
    outputs, _ = run(engine, ask("a", range(20), out=16), ask("b", range(100, 120), out=16))
    assert [sum(output.request_id == name for output in outputs) for name in "ab"] == [16, 16]
    ends = {output.request_id: output.finished for output in outputs if output.finished}
    assert ends["a"] is not None
    assert ends["b"] is not None
    assert (ends["a"].preemptions, ends["b"].preemptions) == (0, 1)
    assert engine.pool.references() == 0


def test_eviction_takes_the_oldest_leaf_first() -> None:
    """A full cache gives up the least recently used chain from its end; roots survive their children."""
    engine = small()
    run(engine, ask("old", range(21)))  # 5 full blocks
    run(engine, ask("new", range(100, 121)))  # 5 full blocks; 2 of 12 blocks hold nothing
    run(engine, ask("third", range(200, 217)))  # 4 full blocks and a partial one
    old, _ = run(engine, ask("old again", range(9)))
    new, _ = run(engine, ask("new again", range(100, 121)))
    assert (old[0].cached_tokens, new[0].cached_tokens) == (8, 20)


@pytest.mark.parametrize(("first", "second", "shared"), [("s1", "s1", 8), ("s1", "s2", 0), ("s1", None, 0), (None, "s1", 0)])
def test_only_equal_salts_share(first: str | None, second: str | None, shared: int) -> None:
    """Isolation holds in both directions, and "no salt" is a namespace of its own."""
    engine = small()
    run(engine, ask("a", range(9), salt=first))
    outputs, _ = run(engine, ask("b", range(9), salt=second))
    assert outputs[0].cached_tokens == shared


def test_adapters_do_not_share() -> None:
    """The adapter enters every block."""
    engine = small()
    run(engine, ask("a", range(9), adapter=Adapter("x", "/x", 1)))
    outputs, _ = run(engine, ask("b", range(9), adapter=Adapter("y", "/y", 2)))
    assert outputs[0].cached_tokens == 0


@pytest.mark.parametrize(
    ("mode", "first", "second"),
    [
        ("ignore_salt", ("", "alpha"), ("", "beta")),
        ("truncate_salt", ("", "12345678-a"), ("", "12345678-b")),
        ("concat_salt_with_adapter", ("a", "bc"), ("ab", "c")),
    ],
)
def test_broken_salt_modes_leak(mode: str, first: tuple[str, str], second: tuple[str, str]) -> None:
    """Each broken mode shares what it must not, and the honest mode does not: an audit has something to find."""

    def second_hit(engine: Engine) -> int:
        for name, (adapter_name, salt) in {"a": first, "b": second}.items():
            adapter = Adapter(adapter_name, "/p", 1) if adapter_name else None
            outputs, _ = run(engine, ask(name, range(9), salt=salt, adapter=adapter))
        return outputs[0].cached_tokens

    assert second_hit(small(salt_mode=mode)) == 8
    assert second_hit(small()) == 0


@pytest.mark.parametrize("mode", ["truncate_salt", "concat_salt_with_adapter"])
def test_broken_salt_modes_leak_only_what_they_must(mode: str) -> None:
    """Salts that differ from the start stay apart, so that an audit must look for the right pair."""
    engine = small(salt_mode=mode)
    run(engine, ask("a", range(9), salt="alpha"))
    outputs, _ = run(engine, ask("b", range(9), salt="beta"))
    assert outputs[0].cached_tokens == 0


def test_request_that_does_not_read_the_cache_still_fills_it() -> None:
    """As with prompt_logprobs."""
    engine = small()
    run(engine, ask("a", range(9)))
    blind, _ = run(engine, ask("b", range(9), read_cache=False))
    assert blind[0].cached_tokens == 0


def test_aborted_prompt_stays_cached() -> None:
    """Its full blocks are free and findable; nothing of it runs any more; a second abort finds nothing."""
    engine = small(max_num_batched_tokens=10)
    engine.submit(ask("a", range(21)), 0.0)
    engine.step(0.0)
    assert engine.abort("a")
    assert not engine.abort("a")
    assert not engine.has_work
    assert engine.pool.used_blocks == 0
    outputs, _ = run(engine, ask("b", range(21)))
    assert outputs[0].cached_tokens == 8


def test_reset_is_refused_while_blocks_are_in_use() -> None:
    """And its event leaves with the next step only."""
    engine = small()
    engine.submit(ask("a", range(9), out=3), 0.0)
    engine.step(0.0)
    assert not engine.reset_prefix_cache()
    run(engine)
    assert engine.reset_prefix_cache()
    _, events = run(engine, ask("b", range(9)))
    assert [event["type"] for event in as_wire(events)] == ["AllBlocksCleared", "BlockStored"]


def test_reset_with_running_requests_sends_them_back() -> None:
    """They start over and end as if nothing had been."""
    engine = small()
    engine.submit(ask("a", range(9), out=3), 0.0)
    engine.step(0.0)
    assert engine.reset_prefix_cache(reset_running=True)
    outputs, _ = run(engine)
    assert [output.index for output in outputs] == [1, 2]


@pytest.mark.parametrize(
    "submission",
    [ask("a", []), ask("a", range(4), out=0), ask("a", range(48))],
    ids=["no prompt", "no output", "too long"],
)
def test_impossible_requests_are_refused(submission: Submission) -> None:
    """They never enter a queue."""
    engine = small()
    with pytest.raises(ValueError, match=r"needs a prompt|exceed"):
        engine.submit(submission, 0.0)
    assert not engine.has_work


def test_same_id_twice_is_refused() -> None:
    """Two running requests could not be told apart."""
    engine = small()
    engine.submit(ask("a", range(4)), 0.0)
    with pytest.raises(ValueError, match="already running"):
        engine.submit(ask("a", range(4)), 0.0)


def test_cache_smaller_than_a_request_is_refused() -> None:
    """Such an engine could stand still for ever."""
    with pytest.raises(ValueError, match="exceeds the cache"):
        EngineConfig(blocks=12, block_size_tokens=4, max_model_len_tokens=48)


def test_times_are_on_the_drivers_clock() -> None:
    """Arrival, first token and end of a request that waits for another."""
    engine = Engine(EngineConfig(max_num_seqs=1, time=TimeModel(step_s=1.0, decode_s_per_sequence=0.0)))
    engine.submit(ask("a", range(4), out=2), 5.0)
    engine.submit(ask("b", range(4), out=1), 5.0)
    now_s = 5.0
    ends: dict[str, Finished] = {}
    while engine.has_work:
        result = engine.step(now_s)
        now_s += result.duration_s
        ends |= {output.request_id: output.finished for output in result.outputs if output.finished}
    assert ends["a"].first_token_s == pytest.approx(6.0, abs=0.01)
    assert ends["b"].arrived_s == 5.0
    assert ends["b"].scheduled_s == pytest.approx(7.0, abs=0.01)
    assert ends["b"].finished_s == pytest.approx(8.0, abs=0.01)


def test_core_imports_neither_clock_nor_network() -> None:
    """The same class must run in a trace replayer's simulated time."""
    code = "import sys, routing.simulator.engine; print(sorted({'asyncio', 'aiohttp', 'zmq', 'django', 'socket'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"
