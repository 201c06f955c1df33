"""The demo that ``make up`` declares: its file with this run's ports, its secrets, and the proof that it answers.

The declaration in ``deploy/demo/demo.yaml`` is an ordinary one; what is generated here is only what it refers to.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from deploy.local import demo_isolation
from deploy.local.options import REPOSITORY
from deploy.local.places import write_private
from deploy.local.plan import FleetPorts, Plan
from deploy.local.process import Child, LaunchError, run_to_end, wait_until

DECLARATION = REPOSITORY / "deploy" / "demo" / "demo.yaml"
LOGIN_EMAIL = "admin@saltroute.localhost"
APPLY_S = 120.0
# How apply refuses a text that was revoked or replaced; see routing.services.declarations and tenants.services.former_texts.
SPENT = ("This secret was revoked", "This secret was replaced")
ANSWER_S = 60.0
AUDIT_S = 150.0
DECLARED = FleetPorts(count=100, http=9001, kv_events=9101, replay=9201)  # the ports that the declaration writes


@dataclass(frozen=True)
class Shown:
    """What a person, or a script through ``run/access.json``, needs to use this run."""

    console: str
    email: str
    password: str
    router: str
    mail: str = ""  # the directory that mails are written to; empty when they go to a server
    audited: str = ""  # what isolation audits found, when, one line for each replica
    key: str | None = None
    token: str | None = None
    model: str | None = None
    curl: str | None = None

    def text(self) -> str:
        """The lines for the terminal."""
        lines = [
            "",
            f"  Console    {self.console}/          sign in as {self.email} with {self.password}",
            f"  API        {self.console}/api/docs/",
            f"  Router     {self.router}/v1",
        ]
        if self.mail:
            lines.append(f"  Mail       {self.mail}/   one file for each; SALTROUTE_SMTP_HOST names a server instead")
        if self.curl is None:
            return "\n".join([*lines, "", "  No simulated fleet (FLEET=0): declare your replicas with manage.py apply -f FILE.yaml"])
        why = f"  curl {self.console}/api/v1/decisions/ID -H 'Authorization: Bearer {self.token}'   # ID: x-saltroute-decision of the answer"
        lines += [f"  Key        {self.key}", f"  Token      {self.token}   (control API, read only)", self.audited]
        return "\n".join([*lines, "", self.curl, "", why])


@dataclass(frozen=True)
class Sample:
    """One endpoint with a key that may use it: what the printed curl line shows."""

    tenant: str
    model: str
    key_name: str
    key: str


def prepare(plan: Plan, *, stopped: Callable[[], bool], watched: Sequence[Child]) -> str:
    """Declare the demo, make sure it answers, and return what to show at the terminal.

    Raises:
        LaunchError: the declaration was refused, or the router did not answer a chat with it in time.
        Stopped: ``stopped()`` became true.
    """
    began = datetime.now(UTC)
    password = _make_login(plan, stopped=stopped)
    mail = plan.manage("operator").env.get("SALTROUTE_MAIL_DIR", "")
    shown = Shown(console=plan.options.control_url, email=LOGIN_EMAIL, password=password, router=plan.options.router_url, mail=mail)
    if plan.options.fleet > 0:
        sample = _declare(plan, stopped=stopped)
        wait_for_answer(plan.options.router_url, sample, stopped=stopped, watched=watched)
        token = _make_token(plan, sample.tenant, stopped=stopped)
        audited = _first_audits(plan, token, began=began, stopped=stopped, watched=watched)
        shown = replace(shown, audited=audited, key=sample.key, token=token, model=sample.model, curl=curl(plan.options.router_url, sample))
    write_private(plan.home.run / "access.json", json.dumps(asdict(shown), indent=2) + "\n")
    return shown.text()


def _declare(plan: Plan, *, stopped: Callable[[], bool]) -> Sample:
    declared = with_files(with_ports(yaml.safe_load(DECLARATION.read_text()), plan.fleet))
    file = plan.home.root / "demo.yaml"
    header = "# Written by make up from deploy/demo/demo.yaml with this run's ports; what is changed here is overwritten.\n"
    file.write_text(header + yaml.safe_dump(declared, sort_keys=False))
    secret_files = {name: plan.held.file(f"demo_{name}") for name in referenced(declared)}

    def apply() -> dict[str, str]:
        keys = {name: remembered(path, lambda: "sk-sr-" + secrets.token_urlsafe(32)) for name, path in secret_files.items()}
        run_to_end(plan.manage("apply", "apply", "-f", str(file), extra=keys), deadline_s=APPLY_S, stopped=stopped)
        return keys

    try:
        keys = apply()
    except LaunchError as error:
        if not any(mark in str(error) for mark in SPENT):
            raise
        # Somebody tried revocation or rotation on the demo's keys: those texts open nothing again, the demo gets new ones.
        for path in secret_files.values():
            path.unlink(missing_ok=True)
        keys = apply()
    return first_sample(declared, keys)


def _make_login(plan: Plan, *, stopped: Callable[[], bool]) -> str:
    """Make the console's first account with a generated password, or give it the remembered one again; returns the password."""
    file = plan.held.password_file("console")
    password = remembered(file, lambda: secrets.token_urlsafe(12))
    run_to_end(plan.manage("operator", "operator", "--email", LOGIN_EMAIL, "--password-file", str(file)), deadline_s=APPLY_S, stopped=stopped)
    return password


def _make_token(plan: Plan, tenant: str, *, stopped: Callable[[], bool]) -> str:
    """Make a read-only control token of the sample's tenant the first time, and whenever the remembered one is no longer good; returns it."""
    file = plan.held.file("demo_token")
    arguments = ["createtoken", f"demo-{secrets.token_hex(3)}", "--tenant", tenant, "--role", "viewer", "--out", str(file)]
    run_to_end(plan.manage("createtoken", *arguments), deadline_s=APPLY_S, stopped=stopped)
    return file.read_text().strip()


def _first_audits(plan: Plan, token: str, *, began: datetime, stopped: Callable[[], bool], watched: Sequence[Child]) -> str:
    """Wait until the workers have audited the replicas of audited pools for the first time; returns lines to show.

    Isolated replicas keep their state from one start to the next, so on a later start there is nothing to wait for. An audit that takes long, is
    refused or does not pass stops nothing: such a replica serves one namespace at most, which is what the product promises.
    """
    pools, url = _audited_pools(), plan.options.control_url
    states: dict[str, str] = {}
    replicas: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []

    def settled() -> bool:
        seen, ordered = _answered(url, token, "replicas"), _answered(url, token, "audits?limit=200")
        if seen is None or ordered is None:
            return False
        replicas[:] = sorted((row for row in seen if row["pool"] in pools), key=lambda row: str(row["name"]))
        runs[:] = ordered
        if not states and (waiting := [row["name"] for row in replicas if row["isolation"] != "isolated"]):
            print(f"auditing the isolation of {', '.join(waiting)}: negative probes through the router, beside positive controls ...", flush=True)
        for row in replicas:
            if row["isolation"] != states.get(row["name"], row["isolation"]):
                print(f"  {row['name']} is {row['isolation']}", flush=True)
            states[row["name"]] = row["isolation"]
        return demo_isolation.settled(replicas, runs, began=began)

    with suppress(LaunchError):
        wait_until("the first isolation audit", settled, deadline_s=AUDIT_S, watched=watched, stopped=stopped)
    return demo_isolation.told(replicas, runs)


def _audited_pools() -> set[str]:
    """Pools that the declaration wants audited: those that endpoints bring along are named after them."""
    declared = yaml.safe_load(DECLARATION.read_text())
    brought = [endpoint for tenant in declared["tenants"] for endpoint in tenant.get("endpoints", [])]
    return {row["name"] for row in [*declared["pools"], *brought] if row.get("isolation") == "audited"}


def _answered(control_url: str, token: str, path: str) -> list[dict[str, Any]] | None:
    """The first page of a list, as the control API tells it the tenant's token; None where it answers an error."""
    parts = urlsplit(control_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request("GET", f"/api/v1/{path}", headers={"Authorization": f"Bearer {token}"})
        rows: list[dict[str, Any]] | None = json.loads(connection.getresponse().read()).get("results")
    finally:
        connection.close()
    return rows


def remembered(path: Path, make: Callable[[], str]) -> str:
    """Read a generated secret, after making it (0600) the first time."""
    if not path.exists():
        write_private(path, make() + "\n")
    return path.read_text().strip()


def with_ports(declared: Any, ports: FleetPorts) -> Any:
    """Put the ports that the fleet really has into the declaration.

    A smaller fleet leaves replicas out, and endpoints that would have none. A larger one is used as far as the declaration goes.
    """
    if isinstance(declared, list):
        kept = [item for item in declared if not _beyond(item, ports)]
        return [with_ports(item, ports) for item in kept if not _without_replicas(item, ports)]
    if isinstance(declared, dict):
        return {key: with_ports(value, ports) for key, value in declared.items()}
    if isinstance(declared, str):
        return re.sub(r"(?<=127\.0\.0\.1:)9\d{3}", lambda match: str(_real_port(int(match.group()), ports)), declared)
    return declared


def with_files(declared: Any) -> Any:
    """Make the paths of artifacts absolute: they are relative to the declaration, and what is applied is a copy of it elsewhere."""
    if isinstance(declared, list):
        return [with_files(item) for item in declared]
    if isinstance(declared, dict):
        return {key: _absolute(value) if key == "tokenizer" else with_files(value) for key, value in declared.items()}
    return declared


def _absolute(tokenizer: dict[str, str]) -> dict[str, str]:
    return {key: str(DECLARATION.parent / value) if key in ("path", "chat_template") else value for key, value in tokenizer.items()}


def _beyond(item: Any, ports: FleetPorts) -> bool:
    """Whether ``item`` is a replica that the fleet is too small to have."""
    port = urlsplit(str(item["url"])).port if isinstance(item, dict) and "url" in item else None
    return port is not None and ports.count <= port - DECLARED.http < DECLARED.count


def _without_replicas(item: Any, ports: FleetPorts) -> bool:
    """Whether ``item`` is an endpoint or pool whose own replicas are all beyond the fleet."""
    replicas = item.get("replicas") if isinstance(item, dict) else None
    return bool(replicas) and all(_beyond(replica, ports) for replica in replicas or [])


def _real_port(declared: int, ports: FleetPorts) -> int:
    for first, real in ((DECLARED.http, ports.http), (DECLARED.kv_events, ports.kv_events), (DECLARED.replay, ports.replay)):
        if 0 <= declared - first < DECLARED.count:
            return real + declared - first
    return declared


def referenced(declared: Any) -> list[str]:
    """Names of the environment variables that the declaration takes secrets from, in order, once each."""
    return list(dict.fromkeys(text.removeprefix("env:") for text in _strings(declared) if text.startswith("env:")))


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from _strings(item)


def first_sample(declared: Any, keys: dict[str, str]) -> Sample:
    """The first tenant that has both an endpoint and a key.

    Raises:
        LaunchError: there is none.
    """
    for tenant in declared.get("tenants", []):
        for key in tenant.get("keys", []):
            for endpoint in tenant.get("endpoints", []):
                return Sample(tenant=tenant["slug"], model=endpoint["name"], key_name=key["name"], key=keys[str(key["secret"]).removeprefix("env:")])
    raise LaunchError(f"{DECLARATION} declares no tenant with an endpoint and a key")


def wait_for_answer(router_url: str, sample: Sample, *, stopped: Callable[[], bool], watched: Sequence[Child]) -> None:
    """Send a chat until the router answers it (configuration reaches it within about a second)."""
    last = "no answer"

    def answered() -> bool:
        nonlocal last
        status, text = chat(router_url, sample)
        last = f"{status}: {text[:300]}"
        return status == 200 and '"content"' in text

    try:
        wait_until("a chat through the demo endpoint", answered, deadline_s=ANSWER_S, watched=watched, stopped=stopped)
    except LaunchError as error:
        raise LaunchError(f"{error}\nthe router's last answer was {last}") from None


def chat(router_url: str, sample: Sample) -> tuple[int, str]:
    """Send one short chat; returns status (0: no connection) and body."""
    parts = urlsplit(router_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    body = json.dumps({"model": sample.model, "max_tokens": 4, "messages": [{"role": "user", "content": "Are you there?"}]})
    try:
        connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {sample.key}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()


def curl(router_url: str, sample: Sample) -> str:
    """A command that works as printed, streaming."""
    body = json.dumps({"model": sample.model, "stream": True, "max_tokens": 40, "messages": [{"role": "user", "content": "Tell me about salt."}]})
    return (
        f"  curl -iN {router_url}/v1/chat/completions \\\n"
        f"    -H 'Authorization: Bearer {sample.key}' -H 'Content-Type: application/json' \\\n"
        f"    -d '{body}'"
    )
