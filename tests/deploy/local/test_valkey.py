"""The embedded Valkey: data survive a restart, and each user can do its own work and nothing else."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from deploy.local.places import Home
from deploy.local.valkey import USERS, Valkey
from settings.env import broker_url

PASSWORDS = {user: f"password-of-{user}" for user in USERS}


@pytest.fixture
def server(home: Home) -> Iterator[Valkey]:
    valkey = Valkey(home, PASSWORDS)
    valkey.start()
    yield valkey
    valkey.stop()


def _url(valkey: Valkey, user: str) -> str:
    return valkey.url(user).replace("{password}", PASSWORDS[user])


def _as(valkey: Valkey, user: str) -> redis.Redis:
    return redis.Redis.from_url(_url(valkey, user))


def test_a_clean_stop_and_a_start_keep_keys_and_streams(server: Valkey) -> None:
    with _as(server, "admin") as admin:
        admin.set("saltroute:snap:t", b"\x00snapshot")
        admin.xadd("saltroute:records", {"r": "router-1"})
    assert server.stop() == 0
    server.start()
    with _as(server, "admin") as admin:
        assert admin.get("saltroute:snap:t") == b"\x00snapshot"
        assert admin.xlen("saltroute:records") == 1


def test_a_killed_server_starts_again_with_its_data(server: Valkey, home: Home) -> None:
    with _as(server, "admin") as admin:
        admin.set("k", "v")
        admin.execute_command("WAITAOF", 1, 0, 5000)  # the append-only file is synced every second; wait for it
    assert server.child is not None
    os.kill(server.child.pid, signal.SIGKILL)
    again = Valkey(home, PASSWORDS)
    again.start()
    try:
        with _as(again, "admin") as admin:
            assert admin.get("k") == b"v"
    finally:
        assert again.stop() == 0


def test_only_a_private_socket_listens_and_no_file_holds_a_password(server: Valkey) -> None:
    with _as(server, "admin") as admin:
        assert admin.config_get("port") == {"port": "0"}
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    written = b"".join(path.read_bytes() for path in server.data.rglob("*") if path.is_file())
    assert not [password for password in PASSWORDS.values() if password.encode() in written]


def test_nobody_gets_in_without_a_name_and_password(server: Valkey) -> None:
    with redis.Redis(unix_socket_path=str(server.socket)) as stranger, pytest.raises(redis.exceptions.AuthenticationError):
        stranger.ping()
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis(unix_socket_path=str(server.socket), username="router", password=PASSWORDS["control"]).ping()


def test_a_router_does_its_work(server: Valkey) -> None:
    with _as(server, "control") as control, _as(server, "router") as router:
        control.set("saltroute:snap:t", "sealed")
        control.hset("saltroute:versions", "t", "3")
        channel = router.pubsub()
        channel.subscribe("saltroute:announce")
        assert channel.get_message(timeout=5) is not None  # the confirmation
        control.publish("saltroute:announce", "t 3")
        message = channel.get_message(timeout=5)
        assert message is not None
        assert message["data"] == b"t 3"
        assert router.get("saltroute:snap:t") == b"sealed"
        assert router.hgetall("saltroute:versions") == {b"t": b"3"}
        router.set("saltroute:router:router-1", "{}", ex=10)
        for stream in ("saltroute:records", "saltroute:captures"):
            assert router.xadd(stream, {"r": "router-1"}, maxlen=1000, approximate=True)
        router.hset("saltroute:quota:q:requests_per_minute", "process:1", "7")
        assert router.hgetall("saltroute:quota:q:requests_per_minute") == {b"process:1": b"7"}
        assert router.time()
        channel.close()


def test_routers_talk_to_one_another(server: Valkey) -> None:
    with _as(server, "router") as one, _as(server, "router") as other:
        channel = one.pubsub()
        channel.subscribe("saltroute:peers")
        assert channel.get_message(timeout=5) is not None  # the confirmation
        assert one.pubsub_numsub("saltroute:peers") == [(b"saltroute:peers", 1)]
        assert other.publish("saltroute:peers", b"sealed") == 1
        message = channel.get_message(timeout=5)
        assert message is not None
        assert message["data"] == b"sealed"
        assert other.set("saltroute:peers:warm:0:0", b"sealed", ex=10)
        assert one.get("saltroute:peers:warm:0:0") == b"sealed"
        channel.close()


@pytest.mark.parametrize(
    "command",
    [
        ("LPUSH", "celery:publish", "task"),
        ("LPUSH", "publish", "task"),
        ("RPUSH", "celery:keys", "task"),
        ("ZADD", "celery:unacked_index", "1", "tag"),
        ("SADD", "celery:_kombu.binding.keys", "route"),
        ("SET", "saltroute:snap:t", "forged"),
        ("HSET", "saltroute:versions", "t", "999"),
        ("PUBLISH", "saltroute:announce", "t 999"),
        ("PUBLISH", "celery:/0.celery.pidbox", "{}"),
        ("PUBLISH", "saltroute:peers:other", "x"),
        ("PUBSUB", "CHANNELS"),
        ("PSUBSCRIBE", "*"),
        ("XRANGE", "saltroute:records", "-", "+"),
        ("XREAD", "STREAMS", "saltroute:records", "0"),
        ("XREAD", "STREAMS", "saltroute:captures", "0"),
        ("DEL", "saltroute:snap:t"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("FLUSHDB",),
        ("EVAL", "return 1", "0"),
        ("HSET", "saltroute:router:router-1", "field", "1"),
        ("HINCRBY", "saltroute:versions", "t", "1"),
        ("GET", "saltroute:quota:other"),
        ("CONFIG", "GET", "*"),
        ("ACL", "LIST"),
        ("SHUTDOWN", "NOSAVE"),
    ],
)
def test_what_a_router_may_not_do(server: Valkey, command: tuple[str, ...]) -> None:
    with _as(server, "router") as router, pytest.raises(redis.exceptions.NoPermissionError):
        router.execute_command(*command)


def test_ingest_consumes_records_and_nothing_else(server: Valkey) -> None:
    with _as(server, "router") as router, _as(server, "ingest") as ingest:
        for stream in ("saltroute:records", "saltroute:captures"):
            router.xadd(stream, {"r": "router-1"})
            ingest.xgroup_create(stream, "ingest", id="0", mkstream=True)
            ((_, entries),) = ingest.xreadgroup("ingest", "one", {stream: ">"})
            assert ingest.xack(stream, "ingest", entries[0][0]) == 1
        for command in (("GET", "saltroute:snap:t"), ("LPUSH", "celery:publish", "t"), ("PUBLISH", "saltroute:announce", "t 1"), ("KEYS", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                ingest.execute_command(*command)


@pytest.mark.parametrize("user", ["control", "worker"])
def test_control_and_workers_administer_nothing(server: Valkey, user: str) -> None:
    with _as(server, user) as client:
        for command in ("CONFIG GET *", "ACL LIST", "FLUSHALL", "SHUTDOWN NOSAVE", "BGREWRITEAOF", "KEYS *", "SET elsewhere 1"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())


def _celery(valkey: Valkey, user: str) -> Celery:
    app = Celery("try", broker=broker_url(_url(valkey, user)), set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "celery:", "max_retries": 0, "socket_connect_timeout": 2.0}
    app.conf.task_ignore_result = True
    return app


def test_celery_sends_through_the_socket_as_control_and_is_refused_as_router(server: Valkey) -> None:
    _celery(server, "control").send_task("some.task", queue="publish")
    with _as(server, "admin") as admin:
        assert admin.llen("celery:publish") == 1
        with pytest.raises(OperationalError, match="no permissions"):
            _celery(server, "router").send_task("some.task", queue="publish")
        assert admin.llen("celery:publish") == 1


def test_a_worker_receives_what_was_sent(server: Valkey) -> None:
    _celery(server, "control").send_task("some.task", queue="publish")
    with _celery(server, "worker").connection_for_read() as connection, connection.SimpleBuffer("publish") as queue:
        message = queue.get(timeout=5)
        assert message.headers["task"] == "some.task"
        message.ack()
