"""The process table: every process of the product, its command, its environment, and how one sees that it is ready."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import redis

from deploy.local import environment
from deploy.local.options import REPOSITORY, Options
from deploy.local.places import Home, write_private
from deploy.local.process import Child
from deploy.local.secrets import Secrets

DEMO = REPOSITORY / "deploy" / "demo"

RECORDS_STREAM = "saltroute:records"
QUEUES = ("publish", "keys", "audit", "bulk")
READY_S = 90.0


@dataclass(frozen=True)
class Addresses:
    """How processes reach the services: URLs with ``{password}``, and the files that hold the passwords."""

    database: Mapping[str, tuple[str, Path | None]]  # by role
    valkey: Mapping[str, tuple[str, Path | None]]  # by ACL user
    valkey_admin_url: str


@dataclass(frozen=True)
class FleetPorts:
    """Ports of the simulated replicas: the first of each kind; replica ``n`` has that plus ``n``."""

    count: int
    http: int
    kv_events: int
    replay: int


USUAL_PORTS = FleetPorts(count=4, http=9001, kv_events=9101, replay=9201)


@dataclass
class Service:
    """A long-running process and its readiness."""

    child: Child
    ready: Callable[[], bool]
    deadline_s: float = READY_S


@dataclass
class Plan:
    """Builds children for one installation."""

    options: Options
    home: Home
    held: Secrets
    addresses: Addresses
    fleet: FleetPorts = USUAL_PORTS  # set to what is free before :meth:`services`
    fleet_model: str = "sim-8b"  # the name that the simulated engines serve
    base: dict[str, str] = field(default_factory=environment.inherited)

    def migrate(self) -> Child:
        """Bring the schema up to date, as the role that owns it."""
        return self.child("migrate", [sys.executable, "manage.py", "migrate", "--noinput"], self._database("saltroute_owner"))

    def manage(self, name: str, *arguments: str, extra: Mapping[str, str] | None = None) -> Child:
        """A management command with the rights of the control plane. Django's checks of the code are :meth:`migrate`'s, once a start."""
        argv = [sys.executable, "manage.py", *arguments, "--skip-checks"]
        return self.child(name, argv, {**self._control("control"), **(extra or {})})

    def leave_for_commands(self) -> None:
        """Write the control plane's environment to ``run/manage.env`` (0600), where manage.py finds it."""
        env = self._control("control") | self.audit()
        lines = "".join(f"{name}={value}\n" for name, value in sorted(env.items()))
        write_private(self.home.run / "manage.env", lines)

    def services(self) -> list[list[Service]]:
        """Everything above PostgreSQL and Valkey, in groups. A group starts at once; groups stop in reverse order."""
        workers = [self._worker(queue) for queue in QUEUES]
        behind = [self._control_plane(), *workers, self._beat(), self._ingest()]
        return [[self._fleet()] if self.options.fleet else [], behind, [self._router(number) for number in range(self.options.routers)]]

    def child(self, name: str, argv: list[str], env: Mapping[str, str]) -> Child:
        """A child in the repository's directory, with the base environment and ``env``."""
        return Child(name=name, argv=argv, env={**self.base, **env}, log=self.home.logs / f"{name}.log", cwd=str(REPOSITORY))

    # ---- one method for each row of the table --------------------------------------------------------------------------

    def _control_plane(self) -> Service:
        options = self.options
        argv = [sys.executable, "-m", "gunicorn", "settings.wsgi:application", "--bind", f"{_bracketed(options.control_host)}:{options.control_port}"]
        argv += ["--worker-class", "gthread", "--workers", "1", "--threads", "8", "--timeout", "60", "--graceful-timeout", "10"]
        # no query string, referrer or user agent in the access log
        argv += ["--access-logfile", "-", "--access-logformat", '%(h)s "%(m)s %(U)s" %(s)s %(b)s %(L)ss']
        argv += ["--worker-tmp-dir", str(self.home.run), "--no-control-socket"]
        child = self.child("control", argv, self._control("control") | self._sign_in())
        return Service(child, lambda: answers(f"{options.control_url}/login"))

    def _worker(self, queue: str) -> Service:
        argv = [sys.executable, "-m", "celery", "-A", "settings.celery", "worker", "-Q", queue, "-n", f"{queue}@saltroute"]
        argv += ["-P", "threads", "-c", "2", "-l", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        env = self._control("worker") | {"CELERY_SKIP_CHECKS": "1"}  # as in :meth:`manage`: they import every page, which no worker serves
        if queue == "keys":
            env |= self._root()
        if queue == "audit":
            env |= self.audit()
        child = self.child(f"celery-{queue}", argv, env)
        return Service(child, lambda: "ready." in child.output())

    def _beat(self) -> Service:
        env = {**self._control("worker"), "CELERY_BEAT_SCHEDULE_FILE": str(self.home.run / "beat-schedule")}
        argv = [sys.executable, "-m", "celery", "-A", "settings.celery", "beat", "-l", "INFO", "--pidfile="]
        child = self.child("celery-beat", argv, env)
        return Service(child, lambda: "beat: Starting..." in child.output())

    def _ingest(self) -> Service:
        env = self._database("saltroute_ingest") | self._valkey("ingest")
        env["SALTROUTE_RECORDS_KEY_FILE"] = str(self.held.file("records.key"))
        env["SALTROUTE_SECRET_KEY_FILE"] = str(self.held.file("django.key"))
        child = self.child("ingest", [sys.executable, "manage.py", "ingest"], env)
        return Service(child, lambda: has_consumer_group(self.addresses.valkey_admin_url))

    def _router(self, number: int) -> Service:
        """One of the routers. Several share the public port; each has an identity, an internal port and a state directory of its own."""
        options = self.options
        several = options.routers > 1
        first = self.base.get("ROUTER_ID", "router" if several else "router-1")
        env = self._valkey("router") | {
            **self._root(),
            "SALTROUTE_PUBLISH_PUBLIC_KEY_FILE": str(self.held.file("publish.pub")),
            "SALTROUTE_RECORDS_KEY_FILE": str(self.held.file("records.key")),
            "SALTROUTE_STATE_DIR": str(self.home.state / f"router-{number + 1}" if number else self.home.state),
            "SALTROUTE_ALLOWED_RANGES": options.allowed_ranges,
            "ROUTER_HOST": options.router_host,
            "ROUTER_PORT": str(options.router_port),
            "ROUTER_RECORD_SAMPLE_PERCENT": self.base.get("ROUTER_RECORD_SAMPLE_PERCENT", "100"),  # on one machine every decision can be looked into
            "ROUTER_INTERNAL_PORT": str(options.router_internal_ports[number]),
            "ROUTER_ID": f"{first}-{number + 1}" if several else first,
        }
        if several:
            env["ROUTER_REUSE_PORT"] = "1"
        child = self.child(f"router-{number + 1}" if several else "router", [sys.executable, "-m", "routing.dataplane"], env)
        child.stop_s = 45  # streams that are under way may end first (ROUTER_DRAIN_S)
        return Service(child, lambda: answers(f"{options.router_internal_url(number)}/healthz"))

    def _fleet(self) -> Service:
        ports = self.fleet
        argv = [sys.executable, "-m", "routing.simulator", "--replicas", str(ports.count), "--model", self.fleet_model]
        argv += ["--port", str(ports.http), "--kv-port", str(ports.kv_events), "--replay-port", str(ports.replay)]
        argv += ["--tokenizer", str(DEMO / "tokenizer.json"), "--chat-template", str(DEMO / "chat_template.jinja")]  # as demo.yaml declares
        child = self.child("fleet", argv, {})
        return Service(child, lambda: all(answers(f"http://127.0.0.1:{ports.http + n}/health") for n in range(ports.count)))

    # ---- who holds what -------------------------------------------------------------------------------------------------

    def _control(self, valkey_user: str) -> dict[str, str]:
        """What the web, the Celery workers and commands may hold: never the root key, the sign-in key or the records key."""
        return (
            self._database("saltroute_app")
            | self._valkey(valkey_user)
            | {
                "SALTROUTE_SECRET_KEY_FILE": str(self.held.file("django.key")),
                "SALTROUTE_SEAL_PUBLIC_KEY_FILE": str(self.held.file("seal.pub")),
                "SALTROUTE_PUBLISH_KEY_FILE": str(self.held.file("publish.key")),
                "SALTROUTE_EVIDENCE_PUBLIC_KEY_FILE": str(self.held.file("evidence.pub")),
                "SALTROUTE_ALLOWED_RANGES": self.options.allowed_ranges,
                "SALTROUTE_ROUTER_URL": self.options.router_url,
                "SALTROUTE_CONSOLE_URL": self.base.get("SALTROUTE_CONSOLE_URL", self.options.control_url),
            }
            | self._mail()
        )

    def _mail(self) -> dict[str, str]:
        """Mails go into files below the home, unless the person names a server (``SALTROUTE_SMTP_HOST``; its password is in ``secrets``)."""
        if not self.base.get("SALTROUTE_SMTP_HOST"):
            return {"SALTROUTE_MAIL_DIR": str(self.home.mail)}
        password = self.held.password_file("smtp")
        return {"SALTROUTE_SMTP_PASSWORD_FILE": str(password)} if password.exists() else {}

    def _sign_in(self) -> dict[str, str]:
        """What seals second factors, for the web alone; with the former key behind it while it is being replaced (docs/people.md)."""
        files = [self.held.file(name) for name in ("signin.key", "signin.former.key")]
        return {"SALTROUTE_SIGN_IN_KEY_FILES": ",".join(str(file) for file in files if file.exists())}

    def _root(self) -> dict[str, str]:
        """The root key, for the routers and the ``keys`` worker alone; with the former one beside it while a rotation goes on (docs/keys.md)."""
        current, former = self.held.file("root.key"), self.held.file("root.former.key")
        return {"SALTROUTE_ROOT": f"file:{current},file:{former}"} if former.exists() else {"SALTROUTE_ROOT_KEY_FILE": str(current)}

    def audit(self) -> dict[str, str]:
        """What carries out isolation audits: the key that signs their reports, and the way to the router's internal port."""
        host = _bracketed(self.options.router_host)
        return {
            "SALTROUTE_EVIDENCE_KEY_FILE": str(self.held.file("evidence.key")),
            "SALTROUTE_DOOR_URL": f"http://{host}:{self.options.router_internal_port}",
        }

    def _database(self, role: str) -> dict[str, str]:
        return _service("DATABASE", *self.addresses.database[role])

    def _valkey(self, user: str) -> dict[str, str]:
        return _service("VALKEY", *self.addresses.valkey[user])


def _service(prefix: str, url: str, password_file: Path | None) -> dict[str, str]:
    return {f"{prefix}_URL": url} | ({f"{prefix}_PASSWORD_FILE": str(password_file)} if password_file else {})


def answers(url: str) -> bool:
    """Whether an HTTP server there answers 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def has_consumer_group(valkey_url: str) -> bool:
    """Whether ingest has made its consumer group on the record stream, so that no record can be missed."""
    try:
        with redis.Redis.from_url(valkey_url, socket_timeout=5) as client:
            return bool(client.xinfo_groups(RECORDS_STREAM))
    except redis.exceptions.RedisError:
        return False  # no such stream yet


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
