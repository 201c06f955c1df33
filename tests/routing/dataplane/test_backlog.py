"""What waits to be sent: bounded, in order, and gone only when it was taken."""

from __future__ import annotations

import asyncio

from routing.dataplane.backlog import Backlog


def _backlog(bound: int = 10) -> Backlog[int]:
    return Backlog(bound=bound, batch=3, retry_s=0.001, retry_max_s=0.002)


def _filled(count: int, bound: int = 10) -> Backlog[int]:
    made = _backlog(bound)
    for number in range(count):
        made.put(number)
    return made


def test_a_full_backlog_refuses_the_newest() -> None:
    backlog = _filled(2, bound=3)
    assert backlog.put(2)
    assert backlog.full
    assert not backlog.put(3)
    assert list(backlog) == [0, 1, 2]


async def test_what_is_not_taken_stays_in_order_and_what_is_added_meanwhile_is_not_lost() -> None:
    backlog = _filled(4)

    async def refused(batch: list[int]) -> bool:
        return False

    async def taken(batch: list[int]) -> bool:
        backlog.put(100 + len(batch))
        return True

    assert not await backlog.send_batch(refused)
    assert list(backlog) == [0, 1, 2, 3]
    assert await backlog.send_batch(taken)
    assert list(backlog) == [3, 103]


async def test_an_empty_backlog_sends_nothing() -> None:
    async def never(batch: list[int]) -> bool:
        raise AssertionError(batch)

    assert await _backlog().send_batch(never)


async def test_the_loop_comes_again_until_all_is_taken_and_then_waits_for_more() -> None:
    backlog = _filled(5)
    answers = iter([False, False, True, False, True, True])
    got: list[list[int]] = []
    ended: asyncio.Queue[int] = asyncio.Queue()

    async def send(batch: list[int]) -> bool:
        taken = next(answers)
        if taken:
            got.append(batch)
            ended.put_nowait(len(got))
        return taken

    running = asyncio.create_task(backlog.run(send))
    while await ended.get() < 2:
        pass
    backlog.put(5)
    assert await ended.get() == 3
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert got == [[0, 1, 2], [3, 4], [5]]
