"""Credentials of replicas that were tested and not added yet, when the root key is rotated."""

from __future__ import annotations

from uuid import uuid4

import pytest

from namespaces.core import keyring
from namespaces.core.keyring import Roots
from namespaces.services.sealed import Moved
from routing.models import ReplicaCheck
from routing.services.credentials import CREDENTIALS
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made

pytestmark = pytest.mark.django_db
OLD, NEW = b"o" * 32, b"n" * 32


def test_a_tested_replicas_credential_moves_with_the_root(acorn: Made) -> None:
    """Else the replica that is added an hour later would have one that no router opens. Sealed to the new root it is left alone."""
    check_id, kind, roots = uuid4(), CREDENTIALS, Roots((NEW, OLD))
    info = keyring.credential_info(acorn.id, check_id)
    sealed = keyring.seal(keyring.seal_public_key(OLD), b"of-the-engine", info=info)
    with tenant_scope(acorn.id):
        columns = {"pool_id": uuid4(), "name": "a", "url": "http://127.0.0.1:9601", "engine": "vllm"}
        ReplicaCheck.objects.create(id=check_id, tenant_id=acorn.id, credential=sealed, **columns)
        assert kind.left(acorn.id, roots) == 1
        assert kind.reseal(acorn.id, roots) == Moved(1, 0)
        assert (kind.left(acorn.id, roots), kind.reseal(acorn.id, roots)) == (0, Moved(0, 0))
        held = bytes(ReplicaCheck.objects.get(id=check_id).credential or b"")
    assert Roots((NEW,)).unseal(held, info=info) == b"of-the-engine"
