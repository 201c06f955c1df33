"""The published vectors: an independent script agrees with the product, and old vectors keep passing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from namespaces.core import salts
from namespaces.core.identity import encode
from namespaces.core.keyring import TenantKey
from namespaces.core.subject import Adapter, Artifact, Model, ScopeLevel, Sharing, Subject

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors" / "identity-v1.json"


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_value(item) for item in value] if isinstance(value, list) else value


def _subject(components: list[list[Any]]) -> Subject:
    values = {name: _value(value) for name, value in components}
    adapter = values["adapter"]
    key, endpoint = values.get("key"), values.get("endpoint")
    levels = [ScopeLevel(id=UUID(bytes=id_), segment=segment, version=version) for id_, segment, version in values["scope"]]
    return Subject(
        tenant_id=UUID(bytes=values["tenant"]),
        sharing=Sharing(values["sharing"]),
        scope=tuple(levels),
        engine_family=values["engine"],
        model=Model(*values["model"]),
        tokenizer=Artifact(*values["tokenizer"]),
        chat_template=Artifact(*values["chat_template"]),
        adapter=None if adapter is None else Adapter(*adapter),
        context=tuple((name, version) for name, version in values["context"]),
        multimodal_processor=values["multimodal"],
        data_class=values.get("data_class"),
        epoch=(values["epoch"][0], values["epoch"][1]),
        client_subdivision=values.get("client"),
        key_id=None if key is None else UUID(bytes=key),
        request_nonce=values.get("request"),
        endpoint_id=None if endpoint is None else UUID(bytes=endpoint),
    )


@pytest.mark.parametrize("vector", json.loads(VECTORS.read_text()), ids=lambda vector: vector["name"])
def test_the_product_gives_the_published_values(vector: dict[str, Any]) -> None:
    """Encoding, salt, seed and id of each vector, from a subject rebuilt from its components."""
    subject = _subject(vector["components"])
    names = salts.derive(TenantKey(tenant_id=subject.tenant_id, version=1, secret=bytes.fromhex(vector["tenant_key"])), subject)
    assert encode(subject).hex() == vector["encoding"]
    assert names.salt == vector["salt"]
    assert names.index_seed.hex() == vector["index_seed"]
    assert names.public_id == vector["public_id"]


def test_an_independent_implementation_agrees() -> None:
    """The stand-alone script shares no code with the product and finds every vector right."""
    run = subprocess.run([sys.executable, "-I", ROOT / "docs" / "identity_check.py", VECTORS], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert run.stdout.count(": ok") == len(json.loads(VECTORS.read_text()))


def test_without_a_file_the_independent_check_says_how_it_is_called() -> None:
    run = subprocess.run([sys.executable, "-I", ROOT / "docs" / "identity_check.py"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "give the file of vectors: python docs/identity_check.py tests/vectors/identity-v1.json\n"


def test_the_independent_check_can_fail(tmp_path: Path) -> None:
    """Positive control: one changed digit is found."""
    vectors = json.loads(VECTORS.read_text())
    vectors[3]["salt"] = vectors[3]["salt"][:-1] + ("A" if vectors[3]["salt"][-1] != "A" else "B")
    changed = tmp_path / "vectors.json"
    changed.write_text(json.dumps(vectors))
    run = subprocess.run([sys.executable, "-I", ROOT / "docs" / "identity_check.py", changed], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "DIFFERS in salt" in run.stdout
