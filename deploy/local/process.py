"""Child processes of the launcher: started with their own log, watched, named when they die, stopped for certain.

Every child gets a session of its own, so that Ctrl-C in the terminal reaches the supervisor alone and children stop in
the order the supervisor chooses; and the parent-death signal, so that none outlives a supervisor that was killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOG_BOUND_BYTES = 8 * 1024 * 1024
POLL_S = 0.03
TAIL_LINES = 20
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class LaunchError(Exception):
    """Something that the person at the terminal must read; the text is complete and holds no secret."""


class Stopped(Exception):
    """A signal asked the supervisor to stop while it was waiting for something."""


def die_with_parent(death_signal: int, parent_pid: int) -> Callable[[], None]:
    """Make a ``preexec_fn`` that has the kernel send ``death_signal`` to the child when its parent dies (Linux only)."""

    def arm() -> None:
        if sys.platform == "linux":
            _libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
            if os.getppid() != parent_pid:  # the parent died between fork and here
                os.kill(os.getpid(), signal.SIGKILL)

    return arm


@dataclass(frozen=True)
class Account:
    """The Unix account that a child runs as, when the launcher is root and the program refuses root."""

    name: str
    uid: int
    gid: int


@dataclass
class Child:
    """One process: what to run, where its log is, how it likes to be stopped. Nothing runs before :meth:`start`."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: str = "/"
    account: Account | None = None
    stop_signal: int = signal.SIGTERM
    stop_s: float = 15.0  # patience before SIGKILL
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    log_offset_bytes: int = field(default=0, init=False)
    asked: bool = field(default=False, init=False)  # whether this run got its stop signal

    def start(self) -> None:
        """Start the process, its output appended to the log (which is rotated first when it has grown past the bound)."""
        rotate(self.log)
        self.asked = False
        self.log_offset_bytes = self.log.stat().st_size if self.log.exists() else 0
        fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # the death signal must be set between fork and exec; only prctl, getppid and kill run there
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of fork() in a process with threads (under test)
                self.process = subprocess.Popen(
                    list(self.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=fd,
                    stderr=fd,
                    env=dict(self.env),
                    cwd=self.cwd,
                    start_new_session=True,
                    preexec_fn=die_with_parent(self.stop_signal, os.getpid()),  # noqa: PLW1509 - see the comment above
                    umask=0o077,
                    user=self.account.uid if self.account else None,
                    group=self.account.gid if self.account else None,
                    extra_groups=[] if self.account else None,
                )
        except OSError as error:
            raise LaunchError(f"{self.name}: cannot start {self.argv[0]}: {error.strerror}") from None
        finally:
            os.close(fd)

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.pid

    def exit_code(self) -> int | None:
        """The exit code (negative: the signal that killed it), or None while it runs or before it was started."""
        return None if self.process is None else self.process.poll()

    def output(self, limit_bytes: int = 256 * 1024) -> str:
        """What this run wrote to its log so far, at most the last ``limit_bytes``."""
        try:
            with self.log.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(self.log_offset_bytes, size - limit_bytes))
                return stream.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def obituary(self) -> str:
        """Name the child, its exit code and the end of its log, for the terminal."""
        code = self.exit_code()
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exited with code {code}"
        return f"{self.name} {how}; the end of {self.log}:\n{self.tail()}"

    def tail(self) -> str:
        """The last lines that this run wrote, indented for the terminal."""
        lines = self.output().splitlines()[-TAIL_LINES:] or ["(it wrote nothing)"]
        return "\n".join(f"    {line}" for line in lines)

    def ask_to_stop(self) -> None:
        """Send the stop signal, once; :meth:`stop` then only waits."""
        if self.process is not None and self.process.returncode is None and not self.asked and not _exited(self.process.pid):
            self.asked = True
            self._signal(self.stop_signal)

    def stop(self, *, hurry: Callable[[], bool] = lambda: False) -> int | None:
        """Ask the process to end, wait (not longer than a second once ``hurry()`` holds), kill what is left. Safe to repeat.

        Returns:
            The exit code, or None when it was never started.
        """
        if self.process is None:
            return None
        self.ask_to_stop()
        if self.process.returncode is None:
            began = time.monotonic()
            while not _exited(self.process.pid) and time.monotonic() - began < (min(1.0, self.stop_s) if hurry() else self.stop_s):
                time.sleep(POLL_S)
            # The leader is not reaped yet, so its process group id cannot have been given to a stranger.
            self._signal(signal.SIGKILL, group=True)
            self.process.wait()
        return self.process.returncode

    def _signal(self, number: int, *, group: bool = False) -> None:
        _send(-self.pid if group else self.pid, number)


def _send(pid: int, number: int) -> None:
    """Signal a process, or with a negative pid its group; one that has ended meanwhile is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        return


def _exited(pid: int) -> bool:
    """Whether a child of ours has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def rotate(log: Path, bound_bytes: int = LOG_BOUND_BYTES) -> None:
    """Move a log past its bound aside, to one ``.1`` file that replaces the one before it. For a log that nobody writes."""
    if log.exists() and log.stat().st_size > bound_bytes:
        log.replace(log.with_name(log.name + ".1"))


def trim(child: Child, bound_bytes: int = LOG_BOUND_BYTES) -> None:
    """The same for a running child: its log is copied aside and emptied, since the child keeps the file open (to append, so it goes on at the
    beginning). Lines that it writes between the two are lost.
    """
    try:
        if child.log.stat().st_size <= bound_bytes:
            return
        shutil.copyfile(child.log, child.log.with_name(child.log.name + ".1"))
        os.truncate(child.log, 0)
    except FileNotFoundError:
        return
    child.log_offset_bytes = 0


def wait_until(
    what: str, ready: Callable[[], bool], *, deadline_s: float, watched: Sequence[Child] = (), stopped: Callable[[], bool] = lambda: False
) -> None:
    """Poll ``ready`` until it holds.

    Raises:
        LaunchError: a watched child died (named, with the end of its log), or the deadline passed.
        Stopped: ``stopped()`` became true.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        if stopped():
            raise Stopped
        for child in watched:
            if child.exit_code() is not None:
                raise LaunchError(child.obituary())
        if ready():
            return
        if time.monotonic() > deadline:
            tail = f"; the end of {watched[0].log}:\n{watched[0].tail()}" if watched else ""
            raise LaunchError(f"{what} was not ready within {deadline_s:.0f} s{tail}")
        time.sleep(POLL_S)


def run_to_end(child: Child, *, deadline_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
    """Run a short-lived child (a migration, say) and insist on exit code 0.

    Raises:
        LaunchError: it failed (with the end of its log), or did not end within the deadline.
        Stopped: ``stopped()`` became true; the child has been stopped.
    """
    child.start()
    try:
        wait_until(child.name, lambda: child.exit_code() is not None, deadline_s=deadline_s, stopped=stopped)
    finally:
        child.stop()
    if child.exit_code() != 0:
        raise LaunchError(child.obituary())


# ---- what an earlier supervisor left behind ---------------------------------------------------------------------------


def started_at(pid: int) -> str | None:
    """A value that tells two processes with the same pid apart, or None when there is no such (living) process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]  # state; starttime in clock ticks since boot


def remember(path: Path, children: Sequence[Child]) -> None:
    """Write the pids of living children, with their start times, so that the next start can find leftovers."""
    living = [child for child in children if child.process is not None and child.exit_code() is None]
    rows = {child.name: [child.pid, started_at(child.pid), int(child.stop_signal), child.stop_s] for child in living}
    spare = path.with_name(path.name + ".new")
    spare.write_text(json.dumps(rows))
    spare.replace(path)


def clear_leftovers(path: Path) -> list[str]:
    """Stop children that outlived an earlier supervisor, each with its own signal and patience. Pids that now belong to others are left alone.

    Returns:
        The names of the children that were still there.
    """
    try:
        rows = json.loads(path.read_text())
        known = [_Leftover(name, int(pid), str(start), int(number), float(stop_s)) for name, (pid, start, number, stop_s) in rows.items()]
    except (OSError, ValueError, TypeError, AttributeError):
        return []
    found = [leftover for leftover in known if leftover.lives()]
    for leftover in found:
        _send(leftover.pid, leftover.stop_signal)
    began = time.monotonic()
    while waiting := [leftover for leftover in found if leftover.lives()]:
        for leftover in waiting:
            waited_s = time.monotonic() - began
            if waited_s > leftover.stop_s + 10:
                raise LaunchError(f"{leftover.name} (pid {leftover.pid}), left over from an earlier run, cannot be stopped")
            if waited_s > leftover.stop_s:
                _send(-leftover.pid, signal.SIGKILL)  # its whole session; the leader lives, so the group is still its own
        time.sleep(POLL_S)
    path.unlink(missing_ok=True)
    return sorted(leftover.name for leftover in found)


@dataclass(frozen=True)
class _Leftover:
    """A child that an earlier supervisor wrote down."""

    name: str
    pid: int
    started: str
    stop_signal: int
    stop_s: float

    def lives(self) -> bool:
        return started_at(self.pid) == self.started
