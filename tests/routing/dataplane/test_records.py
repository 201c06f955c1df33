"""What a record holds: candidates only where they will be looked at, and what the engine said, never what the client claims."""

from __future__ import annotations

import time

from routing.core import record
from tests.fakes.rig import HI, bumped, endpoint
from tests.routing.dataplane.conftest import MakeRig


async def test_an_ordinary_request_leaves_a_short_record(make_rig: MakeRig) -> None:
    rig = await make_rig(record_sample=0.0)
    assert (await rig.chat()).status == 200
    (short,) = rig.records()
    assert (short.candidates, short.considered) == ((), 2)
    assert short.replica_name in {"A", "B"}
    assert short.prefill_tokens_per_s is not None
    full = await make_rig()
    assert (await full.chat()).status == 200
    assert len(full.records()[0].candidates) == 2
    assert len(record.encode(short)) < len(record.encode(full.records()[0])) / 1.5


async def test_an_endpoint_that_is_looked_into_leaves_full_ones_until_its_time_is_over(make_rig: MakeRig) -> None:
    rig = await make_rig(record_sample=0.0)
    for until_s, kept in ((time.time() + 600, 2), (time.time() - 1, 0)):
        rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], explain_until=until_s),)))
        assert (await rig.chat()).status == 200
        assert len(rig.records()[-1].candidates) == kept


async def test_a_failed_request_leaves_a_full_record(make_rig: MakeRig) -> None:
    rig = await make_rig(record_sample=0.0)
    await rig.a.stop()
    await rig.b.stop()
    assert (await rig.chat()).status >= 500
    assert len(rig.records()[-1].candidates) == 2


async def test_usage_is_what_the_engine_says(make_rig: MakeRig) -> None:
    """A client's own usage, in body and headers, counts for nothing."""
    rig = await make_rig(record_sample=0.0)
    claimed = {"prompt_tokens": 1, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 987_654}}
    answer = await rig.chat({**HI, "usage": claimed, "cached_tokens": 987_654}, headers={"X-Saltroute-Usage": "987654", "usage": "987654"})
    if answer.status != 200:  # a body with members that engines do not know may be refused; then nothing is counted at all
        assert rig.records()[-1].cached_tokens is None
        return
    said = answer.json["usage"]
    kept = rig.records()[-1]
    assert (kept.prompt_tokens, kept.completion_tokens) == (said["prompt_tokens"], said["completion_tokens"])
    assert kept.cached_tokens != 987_654
