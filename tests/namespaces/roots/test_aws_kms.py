"""The KMS adapter against moto's server, over real HTTP on a free port of loopback."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import boto3
import pytest
from django.core.management import call_command
from moto.server import ThreadedMotoServer

from namespaces import roots
from namespaces.core import keyring
from namespaces.root import RootError
from namespaces.roots import aws_kms
from routing.dataplane.config import from_environment
from settings.env import EnvError


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A KMS of our own."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of nobody, and no file or metadata service of this machine's."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def kms(endpoint: str) -> Any:
    """The tests' own hand on KMS."""
    return boto3.client("kms", endpoint_url=endpoint, region_name="eu-west-1")


def _key(kms: Any) -> str:
    return str(kms.create_key()["KeyMetadata"]["KeyId"])


def _options(endpoint: str, key: str) -> str:
    return f"key={key}&region=eu-west-1&endpoint={endpoint}"


def test_a_generated_root_key_comes_back(kms: Any, endpoint: str, tmp_path: Path) -> None:
    """KMS makes it, the file holds what KMS encrypted, and a process opens it."""
    rest = f"{tmp_path / 'root.kms'}?{_options(endpoint, _key(kms))}"
    key, blob = aws_kms.generate(rest)
    (tmp_path / "root.kms").write_bytes(blob)
    assert len(key) == 32
    assert key not in blob
    assert roots.load((f"awskms:{rest}",)).current == key


def test_another_key_context_or_blob_does_not_open(kms: Any, endpoint: str, tmp_path: Path) -> None:
    """The KMS key is named, the context is bound, and damage is noticed; the refusal holds the code and nothing of the key."""
    mine, other = _key(kms), _key(kms)
    blob = tmp_path / "root.kms"
    path = f"awskms:{blob}?"
    root = b"r" * 32
    wrong = {
        "other key": (mine, kms.encrypt(KeyId=other, Plaintext=root, EncryptionContext=aws_kms.CONTEXT)["CiphertextBlob"]),
        "no context": (mine, kms.encrypt(KeyId=mine, Plaintext=root)["CiphertextBlob"]),
        "wrong context": (mine, kms.encrypt(KeyId=mine, Plaintext=root, EncryptionContext={"saltroute:purpose": "else"})["CiphertextBlob"]),
        "unknown key": ("11111111-2222-4333-8444-555555555555", aws_kms.generate(f"x?{_options(endpoint, mine)}")[1]),
        "damage": (mine, b"not a blob of KMS at all, whatever its length may be, and it must not be opened by anybody"),
    }
    for name, (key, stored) in wrong.items():
        blob.write_bytes(stored)
        with pytest.raises(RootError, match=r"AWS KMS refuses decrypt: [A-Za-z]+$") as refused:
            roots.load((path + _options(endpoint, key),))
        assert root.decode() not in str(refused.value), name
    blob.write_bytes(kms.encrypt(KeyId=mine, Plaintext=b"short", EncryptionContext=aws_kms.CONTEXT)["CiphertextBlob"])
    with pytest.raises(RootError, match="exactly 32 bytes"):
        roots.load((path + _options(endpoint, mine),))


@pytest.mark.parametrize("rest", ["", "/root.kms", "/root.kms?region=eu-west-1", "?key=k", "/root.kms?key=k&token=x"])
def test_a_reference_needs_a_path_and_a_key(rest: str) -> None:
    """Unknown options are refused rather than ignored: a misspelt endpoint would send the blob elsewhere."""
    with pytest.raises(RootError):
        roots.load((f"awskms:{rest}",))


def test_a_kms_that_is_away_is_a_clear_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded by our own deadlines; no credentials are one more reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "root.kms").write_bytes(b"blob")
    monkeypatch.setattr(aws_kms, "TRIES", 1)
    for endpoint in (f"http://127.0.0.1:{port}", "not a url"):
        with pytest.raises(RootError, match="cannot be asked"):
            roots.load((f"awskms:{tmp_path / 'root.kms'}?{_options(endpoint, 'k')}",))
    with pytest.raises(RootError, match="cannot be read"):
        roots.load((f"awskms:{tmp_path / 'absent'}?{_options('http://127.0.0.1:1', 'k')}",))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(RootError, match="cannot be asked: NoCredentialsError"):
        roots.load((f"awskms:{tmp_path / 'root.kms'}?{_options(f'http://127.0.0.1:{port}', 'k')}",))


def test_without_boto3_the_refusal_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional; whoever does not use it never imports it."""
    (tmp_path / "root.kms").write_bytes(b"blob")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(RootError, match="'kms'"):
        roots.load((f"awskms:{tmp_path / 'root.kms'}?key=k",))


def test_the_command_makes_one_and_a_router_starts_with_it(kms: Any, endpoint: str, tmp_path: Path) -> None:
    """``keys new-root --kms`` writes the blob and the public half; the router's start-up opens it beside a former key in a file."""
    blob, public, former = tmp_path / "root.kms", tmp_path / "seal.pub", tmp_path / "former.key"
    options = _options(endpoint, _key(kms))
    out = StringIO()
    call_command("keys", "new-root", "--out", str(blob), "--public", str(public), "--kms", options, stdout=out)
    former.write_bytes(b"f" * 32)
    (tmp_path / "publish.pub").write_bytes(b"p" * 32)
    (tmp_path / "records.key").write_bytes(b"r" * 32)
    env = {
        "SALTROUTE_ROOT": f"awskms:{blob}?{options},file:{former}",
        "SALTROUTE_PUBLISH_PUBLIC_KEY_FILE": str(tmp_path / "publish.pub"),
        "SALTROUTE_RECORDS_KEY_FILE": str(tmp_path / "records.key"),
        "SALTROUTE_STATE_DIR": str(tmp_path),
        "VALKEY_URL": "redis://127.0.0.1:1/0",
    }
    _, secrets = from_environment(env)
    assert keyring.seal_public_key(secrets.root) == public.read_bytes()
    assert secrets.former_roots == (b"f" * 32,)
    shown = out.getvalue() + repr(secrets)
    assert keyring.root_id(public.read_bytes()) in shown
    assert secrets.root.hex() not in shown
    assert secrets.root not in blob.read_bytes()
    blob.write_bytes(b"damage")
    with pytest.raises(EnvError, match="SALTROUTE_ROOT: AWS KMS refuses"):
        from_environment(env)
