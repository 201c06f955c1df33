"""``manage.py namespace explain``: every component of a cache identity, its value and its source. Works without any key."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from namespaces import roots
from namespaces.root import RootError
from routing.services import explanation
from routing.services.explanation import Explained
from tenants.core.errors import NotFound, Refusal
from tenants.management import tenant
from tenants.scoping import tenant_scope


class Command(BaseCommand):
    """Prints the identity in encoding order. Prints no key, no salt and no seed; the public id only where a root key is held."""

    help = "Explain which cache identity a key's requests for a model get, and what would change it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        explain = verbs.add_parser("explain", help="print every component, its value and its source")
        explain.add_argument("--tenant", metavar="SLUG", help="needed where there are several tenants")
        explain.add_argument("--key", required=True, help="id or name of an inference key; never the key itself")
        explain.add_argument("--model", required=True, help="the model name that clients send")
        explain.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="as a client sends it; may be repeated")
        explain.add_argument("--cache-salt", help="the client's own cache_salt, where the endpoint allows one")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        tenant_id = tenant.named(options["tenant"])
        try:
            held = roots.held(tuple(settings.ROOT)) if settings.ROOT else None
            with tenant_scope(tenant_id):
                answer = explanation.explain(
                    tenant_id=tenant_id,
                    key=options["key"],
                    model=options["model"],
                    headers=_headers(options["header"]),
                    cache_salt=options["cache_salt"],
                    roots=held,
                )
        except NotFound:
            raise CommandError("there is no such key or model in this tenant") from None
        except RootError as error:
            raise CommandError(str(error)) from None
        except Refusal as refusal:
            raise CommandError(f"{refusal.field or 'refused'}: {refusal.message}") from None
        self.stdout.write(_text(answer))


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or name.strip().lower() in {known.lower() for known in headers}:
            raise CommandError("write each header once, as 'NAME: VALUE'")
        headers[name.strip()] = value.strip()
    return headers


def _text(answer: Explained) -> str:
    identity = answer.identity
    width = max(len(component.name) for component in identity.components)
    lines = [
        f"tenant {answer.tenant}, key {answer.key}, model {answer.model}, acting in scope {answer.scope or '(root)'}",
        f"tenant key version {answer.key_version if answer.key_version is not None else 'none'}",
        f"public id {answer.public_id or 'not known here: it takes a root key (or differs for each request)'}",
        f"sharing level {identity.sharing}: shares with {identity.shared_with}",
        *(f"note: {note}" for note in answer.notes),
        "",
        f"identity, schema {identity.schema}, in encoding order:",
    ]
    for component in identity.components:
        value = "absent" if component.absent else json.dumps(component.value, ensure_ascii=False)
        lines.append(f"  {component.name:{width}}  {value}  <- {component.source}")
    lines += ["", "what would change it (and make what is cached unreachable):"]
    lines += [f"  {change.what}: {', '.join(change.components) if change.components else 'nothing'}" for change in identity.changes]
    return "\n".join(lines)
