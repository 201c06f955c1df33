"""An installation to rotate keys in: a platform, two tenants with keys and credentials, one without a key, one deleted."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.utils import timezone

from namespaces.core import keyring
from namespaces.core.keyring import Roots
from namespaces.core.salts import Namespace
from namespaces.models import KeyOperation, TenantKeyVersion
from namespaces.services import keys, operations
from routing.core import snapshot as wire
from routing.dataplane.config import Secrets
from routing.dataplane.keys import Keys
from routing.dataplane.view import TenantView, compile_tenant
from routing.models import Replica
from routing.services import publishing
from tenants.actor import system
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tenants.services import api_keys, provisioning
from tests.routing.services.rows import a_model, a_pool, a_replica, an_endpoint

ACTOR = system("tests")
OLD, NEW, THIRD = b"o" * 32, b"n" * 32, b"t" * 32
BOTH = Roots((NEW, OLD))
SEED = b"p" * 32
CREDENTIAL = "be-secret-of-the-engine"


def public(root: bytes) -> bytes:
    return keyring.seal_public_key(root)


def name(root: bytes) -> str:
    return keyring.root_id(public(root))


@dataclass
class World:
    """Ids of what is there, and what the tenants' keys were in the beginning."""

    platform: UUID
    tenants: dict[str, UUID]
    secrets: dict[UUID, bytes] = field(default_factory=dict)

    @property
    def all(self) -> list[UUID]:
        return [self.platform, *self.tenants.values()]

    def keys(self, roots: Roots) -> dict[UUID, bytes]:
        """Every tenant key as these roots open it.

        Raises:
            KeyringError: one does not open.
        """
        found = {}
        for tenant_id in self.all:
            with tenant_scope(tenant_id):
                for row in TenantKeyVersion.objects.filter(tenant_id=tenant_id):
                    found[tenant_id] = roots.unwrap(tenant_id, row.version, bytes(row.wrapped)).secret
        return found

    def credentials(self, roots: Roots) -> list[str]:
        """Every credential as these roots open it."""
        found: list[str] = []
        for tenant_id in self.all:
            with tenant_scope(tenant_id):
                rows = Replica.objects.filter(tenant_id=tenant_id, credential__isnull=False)
                found += [roots.unseal(bytes(row.credential or b""), info=keyring.credential_info(tenant_id, row.id)).decode() for row in rows]
        return found

    def actions(self, action: str) -> list[int]:
        """How often each tenant's log has this action, in the order of :attr:`all`."""
        counts = []
        for tenant_id in self.all:
            with tenant_scope(tenant_id):
                counts.append(AuditEntry.objects.filter(tenant_id=tenant_id, action=action).count())
        return counts

    def everything_written(self) -> str:
        """All text of the audit logs and operations: what must hold no secret."""
        lines = []
        for tenant_id in self.all:
            with tenant_scope(tenant_id):
                lines += [str(row) for model in (AuditEntry, KeyOperation) for row in model.objects.filter(tenant_id=tenant_id).values()]
        return "\n".join(lines)

    def request(self) -> KeyOperation:
        with tenant_scope(self.platform):
            return operations.request_root_rotation(tenant_id=self.platform, actor=ACTOR, reason="yearly")

    def perform(self, row: KeyOperation, roots: Roots = BOTH) -> KeyOperation:
        """Do an operation to its end, and read it."""
        operations.perform(tenant_id=row.tenant_id, operation_id=row.id, roots=roots, go_on=lambda: True)
        with tenant_scope(row.tenant_id):
            return operations.find(row.tenant_id, str(row.id))


def make_world(settings: Any) -> World:
    """Build it, everything under the old root; from then on the control plane seals to the new one."""
    settings.SEAL_PUBLIC_KEY, settings.PUBLISH_KEY = public(OLD), SEED
    platform = provisioning.ensure_platform().id
    tenants = {slug: provisioning.create(actor=ACTOR, slug=slug, name=slug).id for slug in ("acorn", "birch", "cedar", "keyless")}
    world = World(platform=platform, tenants=tenants)
    for tenant_id in world.all:
        if tenant_id == tenants["keyless"]:
            continue
        with tenant_scope(tenant_id):
            keys.provision(tenant_id=tenant_id, actor=ACTOR, root=OLD)
    for number, tenant_id in enumerate((platform, tenants["acorn"])):
        with tenant_scope(tenant_id):
            pool = a_pool(tenant_id)
            a_replica(pool, url=f"http://127.0.0.1:91{number:02d}", credential=CREDENTIAL)
            if tenant_id != platform:
                an_endpoint(tenant_id, pool=pool, model=a_model(tenant_id))
                api_keys.issue_inference(tenant_id=tenant_id, actor=ACTOR, name="app", now=timezone.now())
    with tenant_scope(tenants["cedar"]):
        provisioning.delete(tenant_id=tenants["cedar"], actor=ACTOR, now=timezone.now())
    world.secrets = world.keys(Roots((OLD,)))
    settings.SEAL_PUBLIC_KEY = public(NEW)
    return world


def router_view(tenant_id: UUID, *, sealed_to: bytes, roots: tuple[bytes, ...]) -> TenantView:
    """The tenant as a router with these roots compiles it, from the document that the publisher makes."""
    with tenant_scope(tenant_id):
        built = publishing.build_snapshot(tenant_id, now_s=time.time())
    document = wire.seal(built, seal_public_key=public(sealed_to), publish_key=SEED)
    held = Keys(Secrets(root=roots[0], former_roots=roots[1:], publish_public_key=keyring.publish_public_key(SEED), records_key=b"r"))
    return compile_tenant(held.open_snapshot(document, tenant_id), held)


def namespace(view: TenantView) -> Namespace:
    """The names that a router derives for the tenant's only endpoint and key."""
    (endpoint,) = view.endpoints.values()
    (key,) = view.snapshot.keys
    return view.namespace(endpoint.entry, scope_path="", key_id=key.id, context={}, subdivision=None)


def spellings(*values: bytes) -> list[str]:
    """How a secret could show in a text."""
    coded = [text for value in values for text in (base64.b64encode(value).decode(), base64.urlsafe_b64encode(value).decode())]
    return [*(text.rstrip("=") for text in coded), *(value.hex() for value in values), *(repr(value)[2:-1] for value in values)]
