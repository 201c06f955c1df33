"""The supervisor with small programs in place of the product: ``python -m tests.deploy.local.rig``.

PostgreSQL and Valkey are the real embedded ones. ``RIG_CRASH=1`` makes the last program fail shortly after the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from deploy.local.options import Options
from deploy.local.plan import Plan, Service
from deploy.local.process import Child
from deploy.local.supervisor import Supervisor

_SLEEPER = """\
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('NAME ends', flush=True), sys.exit(0)))
print('NAME ready', flush=True)
"""
_FOREVER = _SLEEPER + "time.sleep(3600)"
_CRASHING = _SLEEPER + "[print(f'line {n}') for n in range(30)]\nopen(0).read()\nsys.exit('the disk is on fire')"
# a child that starts a grandchild and ignores the polite signal: only the end of its session removes both
_STUBBORN = """\
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(['sleep', '3600'])
print('NAME ready', flush=True)
time.sleep(3600)
"""


class SmallPlan(Plan):
    """Three programs in two groups."""

    def migrate(self) -> Child:
        return self.child("migrate", [sys.executable, "-c", "print('schema is up to date')"], {})

    def services(self) -> list[list[Service]]:
        last = _CRASHING if os.environ.get("RIG_CRASH") else _FOREVER
        stubborn = self._program("stubborn", _STUBBORN)
        stubborn.child.stop_s = 0.3
        return [[self._program("first", _FOREVER), stubborn], [self._program("last", last)]]

    def _program(self, name: str, code: str) -> Service:
        child = self.child(name, [sys.executable, "-c", code.replace("NAME", name)], {})
        return Service(child, lambda: f"{name} ready" in child.output(), deadline_s=20)


def show(plan: Plan, /, *, stopped: Callable[[], bool], watched: Sequence[Child]) -> str:
    """Print the pids, so that a test can look for survivors."""
    return "PIDS " + " ".join(str(child.pid) for child in watched)


if __name__ == "__main__":
    sys.exit(Supervisor(Options.read(), build=SmallPlan, prepare=show).run())
