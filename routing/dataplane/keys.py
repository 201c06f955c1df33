"""All that the data plane does with the root key, in one place: the only module here that imports the key ring."""

from __future__ import annotations

import os
from uuid import UUID

from namespaces.core import captures, keyring
from namespaces.core.keyring import KeyringError, SiblingSeal, TenantKey
from namespaces.core.snapshot import KeyMaterial
from routing.core import snapshot
from routing.core.snapshot import TenantSnapshot
from routing.dataplane.config import Secrets

__all__ = ["KeyringError", "Keys", "SiblingSeal", "TenantKey"]


class Keys:
    """Opens what was wrapped or sealed for routers, and locks the router's own state."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._roots = keyring.Roots((secrets.root, *secrets.former_roots))

    @property
    def root_ids(self) -> tuple[str, ...]:
        """Names of the root keys that this router accepts, current first; for its report."""
        return self._roots.ids

    def open_snapshot(self, document: bytes, tenant_id: UUID) -> TenantSnapshot:
        """Verify, unseal and decode a snapshot.

        Raises:
            SnapshotError: it must not be used.
        """
        return snapshot.open_sealed(document, tenant_id=tenant_id, root=self._roots, publish_public_key=self._secrets.publish_public_key)

    def open_tenant_key(self, tenant_id: UUID, material: KeyMaterial | None) -> TenantKey | None:
        """The tenant's key, or None if there is none or it does not open: then no request of the tenant may leave."""
        if material is None:
            return None
        try:
            return self._roots.unwrap(tenant_id, material.version, material.wrapped)
        except KeyringError:
            return None

    def capture_key(self, key: TenantKey, capture_id: UUID, seed: bytes) -> bytes | None:
        """The key under which a trace capture's ids are made; None if the seed is none: then nothing is captured."""
        try:
            return captures.capture_key(key, capture_id, seed)
        except ValueError:
            return None

    def open_credential(self, owner_tenant_id: UUID, replica_id: UUID, sealed: bytes) -> str | None:
        """A replica's credential as header text; None if it does not open or could not be a header value."""
        try:
            opened = self._roots.unseal(sealed, info=keyring.credential_info(owner_tenant_id, replica_id))
        except KeyringError:
            return None
        text = opened.decode("ascii", "replace")
        return text if text and all("!" <= character <= "~" for character in text) else None

    def sibling_seal(self, process: bytes) -> SiblingSeal:
        """The seal of one router process's messages to its siblings."""
        return self._roots.sibling_seal(process)

    def lock_state(self, plaintext: bytes) -> bytes:
        return keyring.lock_state(self._roots.current, plaintext, os.urandom(keyring.NONCE_BYTES))

    def open_state(self, locked: bytes) -> bytes:
        """Open the state file.

        Raises:
            KeyringError: another root, or damage.
        """
        return self._roots.open_state(locked)
