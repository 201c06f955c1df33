"""``awskms:PATH?key=ARN``: envelope encryption. The file holds the root key as AWS KMS encrypted it; the process asks KMS once, at start, to open it.

Options after ``?``: ``key`` (id, ARN or alias of the KMS key; required, so that a blob under another key is refused), ``region``, ``endpoint`` (a VPC
endpoint, or a test's). Credentials come as boto3 finds them: an instance or pod role, in production. The role needs ``kms:Decrypt`` on that key and
nothing else, and can be bound to the encryption context below. Whoever makes a new root key needs ``kms:GenerateDataKey`` once.

boto3 is the optional extra ``kms``; it is imported when a reference of this kind is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from namespaces.core.keyring import KEY_BYTES
from namespaces.root import RootError

# Bound to the ciphertext by KMS and written to its audit trail, so that key policies can ask for it.
CONTEXT = {"saltroute:purpose": "root-key", "saltroute:version": "1"}
CALL_S = 5.0  # for a connection, and for each answer
TRIES = 3
_OPTIONS = {"key", "region", "endpoint"}


class AwsKms:
    """A root key that KMS opens."""

    scheme = "awskms"

    def load(self, rest: str, env: Mapping[str, str]) -> bytes:  # noqa: ARG002 - boto3 reads its own variables
        """Ask KMS to decrypt the file.

        Raises:
            RootError: a malformed reference, an unreadable file, boto3 is not installed, or KMS refuses or does not answer.
        """
        path, options = _parse(rest)
        try:
            blob = Path(path).read_bytes()
        except OSError as error:
            raise RootError(f"the encrypted root key {path} cannot be read: {error.strerror}") from None
        answer = _call(options, "decrypt", CiphertextBlob=blob, KeyId=options["key"], EncryptionContext=CONTEXT)
        return bytes(answer["Plaintext"])


def generate(reference: str) -> tuple[bytes, bytes]:
    """Have KMS make a new root key: the key, and the blob to keep at the reference's path.

    Raises:
        RootError: as :meth:`AwsKms.load`.
    """
    _, options = _parse(reference)
    answer = _call(options, "generate_data_key", KeyId=options["key"], NumberOfBytes=KEY_BYTES, EncryptionContext=CONTEXT)
    return bytes(answer["Plaintext"]), bytes(answer["CiphertextBlob"])


def _parse(rest: str) -> tuple[str, dict[str, str]]:
    path, _, query = rest.partition("?")
    options = dict(parse_qsl(query))
    if not path or not options.get("key") or set(options) - _OPTIONS:
        raise RootError("use awskms:PATH?key=ARN, with region= and endpoint= where they are needed")
    return path, options


def _call(options: Mapping[str, str], operation: str, **parameters: Any) -> dict[str, Any]:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise RootError("a root key behind AWS KMS needs boto3: install the extra 'kms'") from None
    bounded = Config(connect_timeout=CALL_S, read_timeout=CALL_S, retries={"mode": "standard", "total_max_attempts": TRIES})
    try:
        # A session of our own: the default one is shared between threads and keeps the credentials it saw first.
        client = boto3.session.Session().client("kms", region_name=options.get("region"), endpoint_url=options.get("endpoint"), config=bounded)
        answer: dict[str, Any] = getattr(client, operation)(**parameters)
    except ClientError as error:
        # The code alone: a message of KMS names accounts and roles.
        raise RootError(f"AWS KMS refuses {operation}: {error.response.get('Error', {}).get('Code', 'unknown')}") from None
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise RootError(f"AWS KMS cannot be asked: {type(error).__name__}") from None
    return answer


SOURCE = AwsKms()
