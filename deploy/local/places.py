"""Where the local installation keeps things: directories with the right modes, short socket paths, free ports."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local.process import POLL_S, Account, LaunchError

SOCKET_DIR_BOUND = 80  # characters; sun_path holds 108 bytes, and the file name in the directory needs some of them
FIRST_EPHEMERAL_PORT = 32768  # ports from here on may be taken by any outgoing connection


@dataclass(frozen=True)
class Home:
    """Directory layout below ``SALTROUTE_HOME``."""

    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def mail(self) -> Path:
        """Where mails are written when no server is named."""
        return self.root / "mail"

    @property
    def digest(self) -> str:
        """Names this home in places outside it."""
        return hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:12]

    def make(self) -> None:
        """Create the directories. Others may pass through the root (PostgreSQL's account must), but read nothing."""
        self.root.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.root.chmod(0o711)
        for directory in (self.logs, self.run, self.secrets, self.state, self.mail):
            private_dir(directory)


def private_dir(path: Path, account: Account | None = None) -> Path:
    """Make a 0700 directory for us (or for ``account``), refusing one that belongs to somebody else.

    Raises:
        LaunchError: the path exists and is no directory, is a symbolic link, or has another owner.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    wanted_uid = account.uid if account else os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {wanted_uid, os.geteuid()}:
        raise LaunchError(f"{path} is not a directory of ours; remove it or set SALTROUTE_HOME to another place")
    if account:
        os.chown(path, account.uid, account.gid)
    path.chmod(0o700)
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only we may read, in place of the one before it."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as stream:
        stream.write(text)


def socket_dir(wanted: Path, digest: str, account: Account | None = None) -> Path:
    """A 0700 directory for a Unix socket: ``wanted``, or a short one in the runtime or temporary directory when it is too long."""
    if len(os.fsencode(wanted)) <= SOCKET_DIR_BOUND:
        return private_dir(wanted, account)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(runtime) if runtime and account is None and len(runtime) <= 40 and os.access(runtime, os.W_OK) else Path("/tmp")
    return private_dir(base / f"saltroute-{os.geteuid()}-{digest}-{wanted.name}", account)


def reachable_by(path: Path, account: Account) -> bool:
    """Whether ``account`` can pass through every directory above ``path`` (execute permission for it)."""
    return all(_allows(parent, account, stat.S_IXUSR, stat.S_IXGRP, stat.S_IXOTH) for parent in path.absolute().parents)


def readable_by(path: Path, account: Account) -> bool:
    """Whether ``account`` can reach ``path`` and read it (and, for a directory, list and enter it)."""
    return reachable_by(path, account) and _allows(
        path, account, stat.S_IRUSR | stat.S_IXUSR, stat.S_IRGRP | stat.S_IXGRP, stat.S_IROTH | stat.S_IXOTH
    )


def _allows(path: Path, account: Account, owner: int, group: int, others: int) -> bool:
    while not path.exists():
        path = path.parent
    found = path.stat()
    wanted = owner if found.st_uid == account.uid else group if found.st_gid == account.gid else others
    return found.st_mode & wanted == wanted


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_run(first: int, count: int, host: str = "127.0.0.1", *, avoid: frozenset[int] = frozenset()) -> int:
    """The first of ``count`` consecutive free ports, from ``first`` upward, below the ephemeral range.

    Raises:
        LaunchError: there is no such run.
    """
    start = first
    while start + count <= FIRST_EPHEMERAL_PORT:
        taken = [port for port in range(start, start + count) if port in avoid or not port_is_free(port, host)]
        if not taken:
            return start
        start = taken[-1] + 1
    raise LaunchError(f"no {count} free ports in a row from {first} to {FIRST_EPHEMERAL_PORT - 1}")


@contextmanager
def choosing_ports(*, deadline_s: float = 60.0) -> Iterator[None]:
    """Hold a lock of this account's from the choice of ports until they are bound: two starts at once would choose the same.

    Raises:
        LaunchError: another start held it longer than the deadline.
    """
    with (private_dir(Path(f"/tmp/saltroute-{os.geteuid()}")) / "ports.lock").open("a") as stream:
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LaunchError(f"another start is still choosing its ports after {deadline_s:.0f} s") from None
                time.sleep(POLL_S)
        yield


def short_temporary_home(prefix: str) -> Path:
    """A fresh directory with a short path that PostgreSQL's account can pass through; the caller removes it."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    path.chmod(0o711)
    return path
