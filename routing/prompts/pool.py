"""The sandbox's outside: a pool of worker processes for code and data that tenants uploaded.

A worker serves one tenant for as long as it lives, so that nothing of one tenant's can be met by another's template. A tenant has at most
``owner_workers`` of them busy and ``owner_queue`` jobs waiting. A job over its time is ended with SIGKILL, and the worker with it; an artifact that
does so too often within a minute is set aside for a while, longer each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routing.prompts import frames
from routing.prompts.types import Kind, Reason
from routing.prompts.worker import BOOT, MAX_HELD

MAX_ANSWER_BYTES = 32 * 1024 * 1024
WRITE_BYTES = 256 * 1024  # given to a pipe at once: all of a large file would be copied in one go
START_S = 20.0  # a worker that has not answered by then will not
STRIKES = 3
STRIKES_WITHIN_S = 60.0
ASIDE_S = 60.0
ASIDE_MAX_S = 900.0
MAX_RECORDS = 4096  # artifacts with strikes that are remembered
# What a worker's end means for the request that it ended in.
_ENDS: dict[int, Reason] = {-signal.SIGXCPU: "deadline", -signal.SIGABRT: "memory"}


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes and times of the sandbox."""

    workers: int = 4
    owner_workers: int = 1
    queue: int = 256
    owner_queue: int = 32
    memory_bytes: int = 1024 * 1024 * 1024  # address space of a worker: a tokenizer of 17 MB takes some 300 MB while it is read
    load_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact that a job needs, with its content for workers that have not had it yet."""

    kind: Kind
    digest: bytes
    content: bytes = field(repr=False)


@dataclass(slots=True, eq=False)
class _Job:
    owner: bytes
    needs: Sequence[Artifact]
    culprit: bytes  # the artifact that is to blame when the worker dies of this job
    frame: bytes
    limit_s: float
    answer: asyncio.Future[Any]


@dataclass(slots=True, eq=False)
class _Handle:
    process: asyncio.subprocess.Process
    owner: bytes | None = None
    loaded: dict[tuple[Kind, bytes], None] = field(default_factory=dict)
    busy: bool = False
    idle_since_s: float = 0.0


@dataclass(slots=True)
class _Record:
    strikes: deque[float] = field(default_factory=deque)
    aside_until_s: float = 0.0
    times: int = 0


class Refused(Exception):
    """The sandbox gives no answer, for a reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Pool:
    """Workers and the jobs that wait for them."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._waiting: OrderedDict[bytes, deque[_Job]] = OrderedDict()  # whose turn it is comes first
        self._running: Counter[bytes] = Counter()
        self._handles: set[_Handle] = set()
        self._starting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._records: OrderedDict[tuple[bytes, bytes], _Record] = OrderedDict()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._stopped = True
        self.counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Make the empty folder and the first worker."""
        self._folder = tempfile.TemporaryDirectory(prefix="saltroute-prompts-")
        os.chmod(self._folder.name, 0o500)
        self._stopped = False
        self._spawn()

    async def stop(self) -> None:
        """End all workers; whoever waits is told."""
        self._stopped = True
        for jobs in self._waiting.values():
            for job in jobs:
                _refuse(job, "stopped")
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(handle) for handle in list(self._handles)))
        if self._folder is not None:
            os.chmod(self._folder.name, 0o700)
            self._folder.cleanup()
            self._folder = None

    async def run(self, *, owner: bytes, needs: Sequence[Artifact], culprit: bytes, operation: str, arguments: Sequence[Any], limit_s: float) -> Any:
        """The answer of a worker. Whoever stops waiting leaves the job to its end: a running worker is not interrupted for an impatient caller.

        Raises:
            Refused: set aside, queue full, over its time, killed, or refused by the worker with a reason of its own.
            OverflowError, TypeError: the arguments cannot be sent.
        """
        now_s = _now_s()
        if self._stopped:
            raise Refused("stopped")
        if any(self.is_aside(owner, digest, now_s) for digest in (culprit, *(need.digest for need in needs))):
            raise Refused("set_aside")
        jobs = self._waiting.get(owner, ())
        if len(jobs) >= self._limits.owner_queue or sum(map(len, self._waiting.values())) >= self._limits.queue:
            self.counts["queue_dropped"] += 1
            raise Refused("queue_full")
        frame = frames.pack([operation, limit_s, *arguments])
        job = _Job(owner, needs, culprit, frame, limit_s, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(owner, deque()).append(job)
        self._pump()
        try:
            return await job.answer
        finally:
            self._forget_job(job)

    def is_aside(self, owner: bytes, digest: bytes, now_s: float) -> bool:
        record = self._records.get((owner, digest))
        return record is not None and now_s < record.aside_until_s

    def forget(self, kind: Kind, digest: bytes) -> None:
        """Forget an artifact's strikes; workers that hold it keep it until they end or need its place."""
        del kind
        for key in [key for key in self._records if key[1] == digest]:
            del self._records[key]

    def gauges(self) -> dict[str, float]:
        now_s = _now_s() if not self._stopped else 0.0
        return {
            "workers": len(self._handles),
            "workers_busy": sum(handle.busy for handle in self._handles),
            "waiting": sum(map(len, self._waiting.values())),
            "artifacts_aside": sum(now_s < record.aside_until_s for record in self._records.values()),
        }

    def pids(self) -> list[int]:
        return [handle.process.pid for handle in self._handles]

    def _forget_job(self, job: _Job) -> None:
        """Take a job that nobody waits for any more out of the queue, if it still is there."""
        jobs = self._waiting.get(job.owner)
        if jobs is not None and job in jobs:
            jobs.remove(job)
            self.counts["queue_abandoned"] += 1
            if not jobs:
                del self._waiting[job.owner]

    # -- whose turn it is

    def _pump(self) -> None:
        """Give waiting jobs to workers, one tenant after the other, as far as there are any."""
        for owner in list(self._waiting):
            if self._running[owner] >= self._limits.owner_workers:
                continue
            handle = self._free_for(owner)
            if handle is None:
                self._make_room(owner)
                continue
            jobs = self._waiting.pop(owner)
            job = jobs.popleft()
            if jobs:
                self._waiting[owner] = jobs  # at the end of the line
            handle.owner, handle.busy = owner, True
            self._running[owner] += 1
            self._task(self._serve(handle, job))
        self._keep_spare()

    def _free_for(self, owner: bytes) -> _Handle | None:
        for handle in [handle for handle in self._handles if not handle.busy and handle.process.returncode is not None]:
            self._handles.discard(handle)  # it ended while nothing was asked of it
            self.counts["deaths"] += 1
        idle = [handle for handle in self._handles if not handle.busy]
        own = next((handle for handle in idle if handle.owner == owner), None)
        return own or next((handle for handle in idle if handle.owner is None), None)

    def _make_room(self, owner: bytes) -> None:
        """Start a worker; where there are as many as may be, in the place of the one that has been idle longest."""
        if self._starting:
            return
        if len(self._handles) < self._limits.workers:
            self._spawn()
            return
        idle = [handle for handle in self._handles if not handle.busy and handle.owner not in (None, owner)]
        if idle:
            oldest = min(idle, key=lambda handle: handle.idle_since_s)
            self._handles.discard(oldest)
            self.counts["workers_retired"] += 1
            self._task(self._end(oldest))
            self._spawn()

    def _keep_spare(self) -> None:
        """A warm worker for the next tenant, as long as there is room."""
        blank = any(handle.owner is None for handle in self._handles)
        if not blank and not self._starting and len(self._handles) < self._limits.workers:
            self._spawn()

    # -- processes

    def _task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _spawn(self) -> None:
        if not self._stopped:
            self._starting += 1
            self._task(self._start_worker())

    async def _start_worker(self) -> None:
        if self._folder is None:
            raise RuntimeError("not started")
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", BOOT, str(self._limits.memory_bytes), *_paths(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"TOKENIZERS_PARALLELISM": "false"},
                cwd=self._folder.name,
                start_new_session=True,
                limit=1024 * 1024,
            )  # fmt: skip
        except OSError:
            self._starting -= 1
            self.counts["start_failed"] += 1
            return
        handle = _Handle(process, busy=True)
        self._handles.add(handle)
        self._starting -= 1
        self.counts["workers_started"] += 1
        try:
            async with asyncio.timeout(START_S):
                await _exchange(process, (frames.pack(["ready", 1.0]),))
        except (TimeoutError, OSError, asyncio.IncompleteReadError, frames.FrameError):
            self.counts["start_failed"] += 1
            await self._end(handle)
            return
        handle.busy, handle.idle_since_s = False, _now_s()
        self._pump()

    async def _end(self, handle: _Handle) -> int:
        """Kill a worker, and wait until it is gone."""
        self._handles.discard(handle)
        with contextlib.suppress(ProcessLookupError):
            handle.process.kill()
        return await handle.process.wait()

    async def _serve(self, handle: _Handle, job: _Job) -> None:
        try:
            await self._do(handle, job)
        finally:
            self._running[job.owner] -= 1
            if not self._running[job.owner]:
                del self._running[job.owner]
            handle.busy, handle.idle_since_s = False, _now_s()
            if not job.answer.done():
                _refuse(job, "stopped" if self._stopped else "worker")
            if not self._stopped:
                self._pump()

    async def _do(self, handle: _Handle, job: _Job) -> None:
        """The job with what it needs before it; a worker that fails is gone afterwards."""
        for need in job.needs:
            if (need.kind, need.digest) in handle.loaded:
                continue
            load = frames.around([need.kind, self._limits.load_s, need.digest], need.content)
            status, value = await self._ask(handle, job.owner, need.digest, load, self._limits.load_s)
            if status != "ok":
                _refuse(job, value)
                return
            _remember(handle.loaded, (need.kind, need.digest))
        status, value = await self._ask(handle, job.owner, job.culprit, (job.frame,), job.limit_s)
        if status != "ok":
            _refuse(job, value)
        elif not job.answer.done():
            job.answer.set_result(value)

    async def _ask(self, handle: _Handle, owner: bytes, culprit: bytes, frame: Sequence[bytes], limit_s: float) -> tuple[str, Any]:
        try:
            async with asyncio.timeout(limit_s):
                status, value = await _exchange(handle.process, frame)
        except TimeoutError:
            await self._end(handle)
            reason: Reason = "deadline"
            self.counts["deadline_kills"] += 1
        except (OSError, asyncio.IncompleteReadError):
            reason = _ENDS.get(await self._end(handle), "worker")
            self.counts["deaths"] += 1
        except (frames.FrameError, ValueError, TypeError):
            await self._end(handle)
            reason = "worker"
            self.counts["deaths"] += 1
        else:
            if status != "ok" and value == "memory":  # a process that ran out of memory once is not worth keeping
                await self._end(handle)
                self._strike(owner, culprit)
            return status, value
        self._strike(owner, culprit)
        return "no", reason

    def _strike(self, owner: bytes, digest: bytes) -> None:
        now_s = _now_s()
        record = self._records.setdefault((owner, digest), _Record())
        self._records.move_to_end((owner, digest))
        record.strikes.append(now_s)
        while record.strikes and now_s - record.strikes[0] > STRIKES_WITHIN_S:
            record.strikes.popleft()
        if len(record.strikes) >= STRIKES:
            record.aside_until_s = now_s + min(ASIDE_S * 2**record.times, ASIDE_MAX_S)
            record.times += 1
            record.strikes.clear()
            self.counts["set_aside"] += 1
        while len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)


def _remember(loaded: dict[tuple[Kind, bytes], None], key: tuple[Kind, bytes]) -> None:
    """Note what a worker holds; it drops the oldest of a kind, by the same rule."""
    same = [each for each in loaded if each[0] == key[0]]
    if len(same) >= MAX_HELD:
        del loaded[same[0]]
    loaded[key] = None


def _refuse(job: _Job, reason: Reason) -> None:
    if not job.answer.done():
        job.answer.set_exception(Refused(reason))


async def _exchange(process: asyncio.subprocess.Process, frame: Sequence[bytes]) -> tuple[str, Any]:
    """Send a request, given in parts, and wait for its answer.

    Raises:
        FrameError, TypeError, ValueError: not an answer. OSError, IncompleteReadError: the worker is gone.
    """
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("a worker has two pipes")
    for part in frame:
        view = memoryview(part)
        for start in range(0, len(view), WRITE_BYTES):
            process.stdin.write(view[start : start + WRITE_BYTES])
            await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(frames.HEAD_BYTES), "big")
    if size > MAX_ANSWER_BYTES:
        raise frames.FrameError
    status, value = frames.unpack(await process.stdout.readexactly(size))
    return status, value


def _paths() -> list[str]:
    """Where a worker finds the standard library, this package and the libraries it uses."""
    return [each for each in dict.fromkeys([str(Path(__file__).parents[2]), *sys.path]) if each and os.path.isabs(each)]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
