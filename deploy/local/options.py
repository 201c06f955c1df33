"""What a person may set for ``make up``, read once and checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.places import port_is_free
from deploy.local.process import LaunchError
from settings import env as reader

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FLEET_BOUND = 64  # replicas in one simulator process
ROUTERS_BOUND = 16


@dataclass(frozen=True)
class Options:
    """Settings of one local installation. External services are those of the URLs; empty means embedded."""

    home: Path
    router_host: str
    router_port: int
    router_internal_port: int  # of the first router; the others have the next ones
    routers: int
    control_host: str
    control_port: int
    fleet: int
    database_url: str
    valkey_url: str
    allowed_ranges: str

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Options:
        """Read the environment.

        Raises:
            LaunchError: a value is malformed; the text names the variable.
        """
        try:
            router_port = reader.integer("ROUTER_PORT", 8080, low=1, high=65535, env=environ)
            return cls(
                home=Path(reader.text("SALTROUTE_HOME", str(REPOSITORY / ".saltroute"), env=environ)).expanduser().absolute(),
                router_host=reader.text("ROUTER_HOST", "127.0.0.1", env=environ),
                router_port=router_port,
                router_internal_port=reader.integer("ROUTER_INTERNAL_PORT", min(router_port + 1, 65535), low=1, high=65535, env=environ),
                routers=reader.integer("ROUTERS", 1, low=1, high=ROUTERS_BOUND, env=environ),
                control_host=reader.text("CONTROL_HOST", "127.0.0.1", env=environ),
                control_port=reader.integer("CONTROL_PORT", 8000, low=1, high=65535, env=environ),
                fleet=reader.integer("FLEET", 4, high=FLEET_BOUND, env=environ),
                database_url=reader.password_in(environ.get("DATABASE_URL", ""), "DATABASE_PASSWORD_FILE", env=environ),
                valkey_url=reader.password_in(environ.get("VALKEY_URL", ""), "VALKEY_PASSWORD_FILE", env=environ),
                allowed_ranges=reader.text("SALTROUTE_ALLOWED_RANGES", "127.0.0.0/8", env=environ),
            )
        except reader.EnvError as error:
            raise LaunchError(str(error)) from None

    def check_ports(self) -> None:
        """Refuse a taken or doubly given port before anything starts, in one line that names the variable.

        Raises:
            LaunchError: which port, and what to set.
        """
        wanted = {
            "ROUTER_PORT": (self.router_host, self.router_port, "router"),
            "CONTROL_PORT": (self.control_host, self.control_port, "control plane"),
        }
        rows = [(variable, *row) for variable, row in wanted.items()]
        rows += [("ROUTER_INTERNAL_PORT", self.router_host, port, "router's internal door") for port in self.router_internal_ports]
        seen: dict[int, str] = {}
        for variable, host, port, what in rows:
            if port in seen:
                raise LaunchError(f"{variable} and {seen[port]} are both {port}: set {variable} to another port")
            seen[port] = variable
            if not port_is_free(port, host):
                raise LaunchError(f"port {port} on {host} is taken, so the {what} cannot start: set {variable} to another port")

    @property
    def router_internal_ports(self) -> range:
        """The internal ports of all routers."""
        return range(self.router_internal_port, self.router_internal_port + self.routers)

    @property
    def router_url(self) -> str:
        return f"http://{_shown(self.router_host)}:{self.router_port}"

    def router_internal_url(self, number: int) -> str:
        """Of one of the routers, counted from 0."""
        return f"http://{_shown(self.router_host)}:{self.router_internal_ports[number]}"

    @property
    def control_url(self) -> str:
        return f"http://{_shown(self.control_host)}:{self.control_port}"


def _shown(host: str) -> str:
    """A host that a browser can open: a wildcard address means this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{name}]" if ":" in name else name
