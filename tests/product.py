"""The whole product as processes, started by its own supervisor in a home of its own: for journey tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local.options import REPOSITORY
from deploy.local.places import Home, free_run, short_temporary_home

START_S = 240
STOP_S = 90
POLL_S = 0.1


class ProductError(AssertionError):
    """The product did not start or stop as it should; the text ends with what the supervisor printed."""


@dataclass
class Product:
    """A running product. What it printed is in ``output``; its logs are in ``home.logs``."""

    home: Home
    process: subprocess.Popen[bytes]
    output: Path
    ports: dict[str, int]
    env: dict[str, str] = field(repr=False)
    router_url: str = ""
    control_url: str = ""
    key: str = ""
    token: str = ""
    model: str = ""
    email: str = ""
    password: str = ""
    curl: str = ""

    @classmethod
    def start(cls, home: Home, *, fleet: int = 4, **extra: str) -> Product:
        """Start in ``home`` on free ports and wait until it says that it is up.

        ``fleet`` is how many engines are simulated. Of the demo the first two are the shared pool's, declared to be isolated. The next two are those
        of Acme's own pool, which has to be audited: that takes half a minute, so a test that needs the shared pool alone asks for two.

        Raises:
            ProductError: it ended, or took too long; with what it printed.
        """
        first = free_run(21000 + os.getpid() % 9000, 3)
        ports = {name: first + n for n, name in enumerate(("ROUTER_PORT", "ROUTER_INTERNAL_PORT", "CONTROL_PORT"))}
        ours = ("DATABASE_", "VALKEY_", "CELERY_", "SALTROUTE_", "DJANGO_", "MAKE")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {name: str(port) for name, port in ports.items()} | {"SALTROUTE_HOME": str(home.root), "FLEET": str(fleet)} | extra
        output = home.root.with_name(home.root.name + ".out")
        product = cls(home=home, process=cls._launched(env, output), output=output, ports=ports, env=env)
        product.wait_up()
        return product

    def start_again(self) -> None:
        """After a stop: start in the same home on the same ports. ``output`` begins anew.

        Raises:
            ProductError: as from :meth:`start`.
        """
        self.process = self._launched(self.env, self.output)
        self.wait_up()

    @staticmethod
    def _launched(env: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
        with output.open("wb") as stream:
            argv = [sys.executable, "-m", "deploy.local", "up"]
            return subprocess.Popen(argv, cwd=REPOSITORY, env=env, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)

    def wait_up(self) -> None:
        """Wait for the closing line of the start, then read how to use it."""
        deadline = time.monotonic() + START_S
        while "Up after" not in self.output.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise ProductError(f"the product did not come up:\n{self.output.read_text()}")
            time.sleep(POLL_S)
        access = json.loads((self.home.run / "access.json").read_text())
        self.router_url, self.control_url = access["router"], access["console"]
        self.email, self.password = access["email"], access["password"]
        self.key, self.model, self.curl = access["key"] or "", access["model"] or "", access["curl"] or ""
        self.token = access["token"] or ""

    def pid(self, name: str) -> int:
        """Pid of a child by its name in the process table (``router``, ``control``, ``postgres``, ``celery-keys`` ...)."""
        return int(json.loads((self.home.run / "children.json").read_text())[name][0])

    def stop(self) -> int:
        """Stop as Ctrl-C does; returns the supervisor's exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_S)


def fresh_home() -> Home:
    """An empty home; give it to :func:`remove` afterwards."""
    home = Home(short_temporary_home("srp-"))
    home.make()
    return home


def remove(home: Home) -> None:
    """Remove a home and the supervisor's output beside it."""
    shutil.rmtree(home.root, ignore_errors=True)
    home.root.with_name(home.root.name + ".out").unlink(missing_ok=True)
