"""``make up``: start everything in order, wait for each, show how to use it, revive what dies, and stop all in reverse order."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, Protocol

from deploy.local import demo, environment, fleet_ports, plan, roles, secrets
from deploy.local.options import Options
from deploy.local.places import Home, choosing_ports
from deploy.local.postgres import Postgres
from deploy.local.process import Child, LaunchError, Stopped, clear_leftovers, die_with_parent, remember, run_to_end, trim, wait_until
from deploy.local.restarts import Restarts
from deploy.local.secrets import Secrets
from deploy.local.valkey import USERS, Valkey

MIGRATE_S = 300.0
WATCH_S = 0.25


class Prepare(Protocol):
    """What makes the demo and returns the text for the terminal."""

    def __call__(self, plan: plan.Plan, /, *, stopped: Callable[[], bool], watched: Sequence[Child]) -> str: ...


class Supervisor:
    """Owns every child of one installation; :meth:`run` returns the exit code.

    Args:
        build: makes the process table; tests put small programs in the product's place.
        prepare: runs once everything is ready, and returns what to show.
    """

    def __init__(self, options: Options, *, build: type[plan.Plan] = plan.Plan, prepare: Prepare = demo.prepare) -> None:
        self._options = options
        self._build = build
        self._prepare = prepare
        self._home = Home(options.home)
        self._groups: list[list[Child]] = []  # in the order of starting; a group starts and stops at once
        self._signals = 0
        self._began = time.monotonic()

    def run(self) -> int:
        """Start, watch until a signal or a death, stop.

        Returns:
            0 after Ctrl-C or SIGTERM, 1 when something failed (it has been named on stderr).
        """
        self._die_with_make()
        with self._handled_signals():
            try:
                if not self._home.root.exists():  # a start that is refused leaves no new folder; in an old one, what is left over may hold the ports
                    self._options.check_ports()
                self._home.make()
                with self._locked():
                    return self._run_locked()
            except LaunchError as error:
                print(f"saltroute: {error}", file=sys.stderr, flush=True)
                return 1

    def _run_locked(self) -> int:
        try:
            self._start()
            self._watch()
        except Stopped:
            return 0  # asked for while something was starting
        except LaunchError as error:
            print(f"saltroute: {error}", file=sys.stderr, flush=True)  # before stopping, which may take a while
            return 1
        else:
            return 0
        finally:
            self._stop()

    # ---- starting -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for name in clear_leftovers(self._home.run / "children.json"):
            print(f"stopped {name}, left over from an earlier run", flush=True)
        self._options.check_ports()
        held = secrets.ensure(self._home.secrets)
        addresses = self._start_stores(held)
        table = self._build(self._options, self._home, held, addresses)
        self._say("migrating")
        run_to_end(table.migrate(), deadline_s=MIGRATE_S, stopped=self._stopping)
        table.leave_for_commands()
        with choosing_ports():
            table.fleet = self._fleet_ports()
            groups = table.services()
            self._say("starting " + ", ".join(service.child.name for group in groups for service in group))
            for group in groups:
                self._start_group([service.child for service in group])
            self._await(groups[0])  # the fleet has bound its ports then
        for group in groups[1:]:
            self._await(group)
        shown = self._prepare(table, stopped=self._stopping, watched=self._children())
        print(shown, flush=True)
        print(f"\nUp after {time.monotonic() - self._began:.1f} s. Logs are in {self._home.logs}; Ctrl-C stops everything.", flush=True)

    def _await(self, group: Sequence[plan.Service]) -> None:
        for service in group:
            watched = [service.child, *self._children()]
            wait_until(service.child.name, service.ready, deadline_s=service.deadline_s, watched=watched, stopped=self._stopping)

    def _start_stores(self, held: Secrets) -> plan.Addresses:
        options = self._options
        if options.database_url:
            self._say("PostgreSQL: the one of DATABASE_URL")
            admin_url = options.database_url
        else:
            self._say("starting PostgreSQL")
            postgres = Postgres(self._home, admin_password=held.password(secrets.POSTGRES_ADMIN))
            with self._adopting(postgres):
                postgres.start(stopped=self._stopping)
            admin_url = postgres.admin_url
        server = roles.Server.at(admin_url)
        roles.bootstrap(server, held.postgres_passwords())
        if options.valkey_url:
            self._say("Valkey: the one of VALKEY_URL (one credential for every process: give each its own ACL user in production)")
            valkey = dict.fromkeys(USERS, environment.password_apart(options.valkey_url, held.password_file("valkey_external")))
            admin = options.valkey_url
        else:
            self._say("starting Valkey")
            embedded = Valkey(self._home, held.valkey_passwords())
            with self._adopting(embedded):
                embedded.start(stopped=self._stopping)
            valkey = {user: (embedded.url(user), held.password_file(f"valkey_{user}")) for user in USERS}
            admin = embedded.url("admin").replace("{password}", held.password("valkey_admin"))
        database = {role: (server.url(role), held.password_file(f"pg_{role}")) for role in roles.LOGIN_ROLES}
        return plan.Addresses(database=database, valkey=valkey, valkey_admin_url=admin)

    def _start_group(self, children: Sequence[Child]) -> None:
        if not children:
            return
        group: list[Child] = []
        self._groups.append(group)
        for child in children:
            if self._stopping():
                raise Stopped
            child.start()
            group.append(child)
            remember(self._home.run / "children.json", self._children())

    @contextmanager
    def _adopting(self, store: Postgres | Valkey) -> Iterator[None]:
        """Own the store's child from the moment it runs, also when it then fails to become ready."""
        try:
            yield
        finally:
            if store.child is not None:
                self._groups.append([store.child])
                remember(self._home.run / "children.json", self._children())

    def _fleet_ports(self) -> plan.FleetPorts:
        options = self._options
        taken = (options.router_port, *options.router_internal_ports, options.control_port)
        return fleet_ports.choose(self._home.run / "fleet.json", options.fleet, taken=taken)

    # ---- watching and stopping ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait for a signal. A child that dies meanwhile is named, with the end of its log, and started again; the others go on.

        Raises:
            LaunchError: a child keeps dying.
        """
        restarts = Restarts()
        while not self._stopping():
            for child in self._children():
                if child.exit_code() is not None:
                    self._revive(child, restarts)
                trim(child)
            select.select([], [], [], WATCH_S)

    def _revive(self, child: Child, restarts: Restarts) -> None:
        now_s = time.monotonic()
        if restarts.waiting(child.name):
            if restarts.due(child.name, now_s):
                child.start()
                remember(self._home.run / "children.json", self._children())
                self._say(f"started {child.name} again")
            return
        delay_s = restarts.died(child.name, now_s)
        if delay_s is None:
            raise LaunchError(f"{child.name} keeps dying\n{child.obituary()}")
        print(f"saltroute: {child.obituary()}", file=sys.stderr, flush=True)
        child.stop()  # what is left of its session
        self._say(f"starting {child.name} again in {delay_s:.1f} s; the others go on")

    def _stop(self) -> None:
        """Stop the groups in reverse order; every child of a group is asked at once, then waited for."""
        if self._groups:
            self._say("stopping")
        for group in reversed(self._groups):
            for child in group:
                child.ask_to_stop()
            for child in reversed(group):
                child.stop(hurry=lambda: self._signals > 1)
        (self._home.run / "children.json").unlink(missing_ok=True)
        if self._groups:
            self._say("stopped")

    def _children(self) -> list[Child]:
        return [child for group in self._groups for child in group]

    # ---- signals and locks ----------------------------------------------------------------------------------------------

    def _stopping(self) -> bool:
        return self._signals > 0

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        """Count SIGINT, SIGTERM and SIGHUP in place of dying of them: the first stops cleanly, the second in a hurry."""

        def count(_number: int, _frame: FrameType | None) -> None:
            self._signals += 1

        before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the home's lock: two supervisors on one home would stop each other's children."""
        with (self._home.run / "lock").open("a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(stream)
                raise LaunchError(f"{self._home.root} is in use by {holder}: stop that one, or set SALTROUTE_HOME to another place") from None
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            yield

    def _die_with_make(self) -> None:
        """Under make, end (cleanly) when make is killed, since nobody would be left to press Ctrl-C."""
        if "MAKELEVEL" in os.environ:
            die_with_parent(signal.SIGTERM, os.getppid())()

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.1f} s] {text}", flush=True)


def _holder(stream: IO[str]) -> str:
    stream.seek(0)
    pid = stream.read().strip()
    return f"another supervisor (pid {pid})" if pid.isdigit() else "another supervisor"
