"""Artifacts, models and adapters over the API."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from routing.services import artifacts
from tenants.core.roles import Role
from tests.fakes.artifacts import SMALL
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db
TOKENIZER = SMALL
SHA256 = hashlib.sha256(TOKENIZER).hexdigest()


def keep(api: Api, content: bytes = TOKENIZER, kind: str = "tokenizer", name: str = "tokenizer.json") -> Any:
    return api.post("artifacts", {"kind": kind, "name": name, "content_base64": base64.b64encode(content).decode()})


def test_an_artifact_is_known_by_its_content(acorn: House) -> None:
    """The same bytes again are the same artifact: 201, then 200, one row, one entry in the log."""
    api = acorn.api(Role.ADMIN)
    first, again = keep(api), keep(api, name="other.json")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert (first.json()["sha256"], first.json()["size_bytes"]) == (SHA256, len(TOKENIZER))
    assert api.get(f"artifacts/{SHA256}").json()["name"] == "tokenizer.json"
    assert len(acorn.log("artifact.store")) == 1
    assert api.delete(f"artifacts/{SHA256}").status_code == 200
    assert api.get(f"artifacts/{SHA256}").status_code == 404


def test_raw_bytes(acorn: House) -> None:
    """A large file goes as it is, with its name in the query; an empty one is refused like any other empty content."""
    api = acorn.api()
    headers = {"Authorization": f"Bearer {api.token}"}
    path = "/api/v1/artifacts?kind=chat_template&name=t.jinja"
    empty = api.client.generic("POST", path, b"", headers={**headers, "Content-Type": "application/octet-stream"})
    refused = empty.json()["error"]
    assert (empty.status_code, refused["code"], refused["field"], refused["message"]) == (400, "invalid", "content", "The content is empty.")
    answer = api.client.generic("POST", path, b"{{ messages }}", content_type="application/octet-stream", headers=headers)
    assert answer.status_code == 201
    assert answer.json()["sha256"] == hashlib.sha256(b"{{ messages }}").hexdigest()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "weights", "name": "x", "content_base64": "e30="}, "kind"),
        ({"kind": "tokenizer", "name": "", "content_base64": "e30="}, "name"),
        ({"kind": "tokenizer", "name": "x", "content_base64": "!"}, "content_base64"),
        ({"kind": "tokenizer", "name": "x", "content_base64": ""}, "content"),
        ({"kind": "tokenizer", "name": "x", "content_base64": base64.b64encode(b"nope").decode()}, "content"),
        ({"kind": "tokenizer", "name": "x", "content_base64": base64.b64encode(b"[1]").decode()}, "content"),
        ({"kind": "chat_template", "name": "x", "content_base64": base64.b64encode(b"\xff").decode()}, "content"),
        ({"kind": "chat_template", "name": "x", "content_base64": base64.b64encode(b"{% for x in %}").decode()}, "content"),
        ({"kind": "tokenizer", "name": "x", "content_base64": base64.b64encode(b'{"version": "1.0", "model": {}}').decode()}, "content"),
    ],
)
def test_bad_artifacts_name_the_field(acorn: House, body: Any, field: str) -> None:
    answer = acorn.api().post("artifacts", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_what_does_not_compile_says_so(acorn: House) -> None:
    """A template that routers could not run is refused where it is uploaded, with the line at fault; one that is odd and compiles is not."""
    refused = keep(acorn.api(), b"fine\n{{ unclosed", "chat_template").json()["error"]
    assert refused["message"] == "This chat template does not compile: line 2: unexpected end of template, expected 'end of print statement'."
    configuration = keep(acorn.api(), b'{"tokenizer_class": "X", "chat_template": "x"}').json()["error"]
    assert configuration["message"].startswith("This tokenizer.json cannot be loaded: this is a tokenizer_config.json, which goes where")
    assert keep(acorn.api(), b"{{ nonsense | tojson }}", "chat_template").status_code == 201
    bundle = b'{"chat_template": "{{ bos_token }}{{ messages }}", "bos_token": "x"}'
    assert keep(acorn.api(), bundle, "chat_template").status_code == 201


def test_artifacts_are_bounded(acorn: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, and all together."""
    monkeypatch.setattr(artifacts, "MAX_BYTES", 100)
    monkeypatch.setattr(artifacts, "MAX_TOTAL_BYTES", 150)
    api = acorn.api()
    too_large = keep(api, b'{"a": "' + b"x" * 100 + b'"}')
    assert (too_large.status_code, too_large.json()["error"]["field"]) == (400, "content")
    assert keep(api).status_code == 201
    full = keep(api, TOKENIZER + b" ")
    assert (full.status_code, full.json()["error"]["code"]) == (409, "limit_reached")


def test_a_model_names_artifacts_that_the_tenant_holds(acorn: House, birch: House) -> None:
    """Its own by digest; another tenant's is as if it were not there; one in use stays."""
    keep(birch.api())
    refused = acorn.api().post("models", {"name": "m", "revision": "r1", "tokenizer_sha256": SHA256})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "tokenizer_sha256")
    keep(acorn.api())
    made = acorn.api().post("models", {"name": "m", "revision": "r1", "tokenizer_sha256": SHA256, "tokenizer_revision": "t1"})
    assert (made.status_code, made.json()["tokenizer_sha256"]) == (201, SHA256)
    assert acorn.api().delete(f"artifacts/{SHA256}").status_code == 409
    assert acorn.api().patch("models/m", {"tokenizer_sha256": None}).json()["tokenizer_sha256"] is None
    assert acorn.api().delete(f"artifacts/{SHA256}").status_code == 200


def test_a_revision_is_changed_with_a_trace(acorn: House) -> None:
    """The log says from what to what; saying the same again raises no version."""
    api = acorn.api(Role.ADMIN)
    api.post("models", {"name": "m", "revision": "r1"})
    changed = api.patch("models/m", {"revision": "r2"}).json()
    assert changed["revision"] == "r2"
    assert api.patch("models/m", {"revision": "r2"}).json()["config_version"] == changed["config_version"]
    (entry,) = acorn.log("model.update")
    assert (entry.before, entry.after) == ({"revision": "r1"}, {"revision": "r2"})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "sr1-x"}, "name"),
        ({"name": "\u212b"}, "name"),  # not NFC
        ({"revision": ""}, "revision"),
        ({"context_window_tokens": 0}, "context_window_tokens"),
        ({"context_window_tokens": True}, "context_window_tokens"),
        ({"tokenizer_sha256": "abc"}, "tokenizer_sha256"),
        ({"kv_dtype": " fp8"}, "kv_dtype"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_models_name_the_field(acorn: House, fields: dict[str, Any], field: str) -> None:
    answer = acorn.api().post("models", {"name": "m", "revision": "r1", **fields})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert acorn.api().get("models").json()["results"] == []


def test_adapters(acorn: House) -> None:
    """Two models may have adapters of one name; then only the id tells them apart. A reload needs a reason and raises the generation."""
    api = acorn.api(Role.ADMIN)
    for name in ("m1", "m2"):
        api.post("models", {"name": name, "revision": "r1"})
    first = api.post("adapters", {"model": "m1", "name": "lora", "revision": "a1"})
    assert (first.status_code, first.json()["model"], first.json()["generation"]) == (201, "m1", 1)
    assert api.post("adapters", {"model": "m1", "name": "lora", "revision": "a1"}).status_code == 409
    absent = api.post("adapters", {"model": "absent", "name": "lora", "revision": "a1"})
    assert (absent.status_code, absent.json()["error"]["field"]) == (404, "model")
    assert api.get("adapters/lora").json()["id"] == first.json()["id"]
    api.post("adapters", {"model": "m2", "name": "lora", "revision": "a1"})
    assert api.get("adapters/lora").status_code == 404
    reference = f"adapters/{first.json()['id']}"
    assert api.patch(reference, {"revision": "a2"}).json()["revision"] == "a2"
    assert api.post(f"{reference}/reload", {}).status_code == 400
    assert acorn.api(Role.OPERATOR).post(f"{reference}/reload", {"reason": "new files"}).json()["generation"] == 2
    assert api.delete(reference).status_code == 200


def test_what_an_endpoint_serves_stays(acorn: House) -> None:
    api = acorn.api()
    api.post("pools", {"name": "gpu"})
    api.post("models", {"name": "m", "revision": "r1"})
    api.post("adapters", {"model": "m", "name": "lora", "revision": "a1"})
    api.post("endpoints", {"name": "chat", "pool": "gpu", "model": "m", "adapter": "lora"})
    assert [api.delete(path).status_code for path in ("models/m", "adapters/lora")] == [409, 409]
    api.delete("endpoints/chat")
    assert api.delete("models/m").status_code == 200
    assert api.get("adapters").json()["results"] == []


def test_roles(acorn: House) -> None:
    body = {"revision": "r1"}
    assert [acorn.api(role).post("models", {"name": role.value, **body}).status_code for role in Role] == [403, 403, 201, 201]
    assert [acorn.api(role).get("models").status_code for role in Role] == [200] * 4


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House) -> None:
    model = acorn.api().post("models", {"name": "m", "revision": "r1"}).json()
    adapter = acorn.api().post("adapters", {"model": "m", "name": "lora", "revision": "a1"}).json()
    artifact = keep(acorn.api()).json()
    api, answers = birch.api(), set()
    named = (f"models/{model['id']}", "models/m", f"adapters/{adapter['id']}", f"artifacts/{artifact['id']}", f"artifacts/{SHA256}")
    for path in (*named, f"models/{ABSENT}"):
        for method in ("GET", "DELETE"):
            answer = api.call(method, path)
            answers.add((answer.status_code, answer.content))
    for path in (f"models/{model['id']}", f"adapters/{adapter['id']}"):
        answer = api.patch(path, {"revision": "r9"})
        answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    assert acorn.api().get("models/m").json()["revision"] == "r1"
