"""``manage.py apply``."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from routing.models import Endpoint, Pool, Replica
from tenants.actor import system
from tenants.core.api_key import Kind, digest
from tenants.core.roles import Role
from tenants.models import ApiKey, Tenant
from tenants.queries import all_tenants, tenant_id_of
from tenants.scoping import tenant_scope
from tenants.services import api_keys
from tests.fakes.artifacts import SMALL

pytestmark = pytest.mark.django_db

DEMO = Path(__file__).parents[3] / "deploy" / "demo" / "demo.yaml"
Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACME_APP_KEY", "ACME_SUPPORT_KEY", "ACME_EMEA_KEY", "ACME_RESEARCH_KEY", "GLOBEX_APP_KEY", "GLOBEX_RESEARCH_KEY", "ACME_KEY"):
        monkeypatch.setenv(name, f"sk-sr-{name.lower().replace('_', '-')}-0123456789")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a declaration file."""

    def put(text: str) -> Path:
        file = tmp_path / "declared.yaml"
        file.write_text(text)
        return file

    return put


def run(file: Path, *options: str) -> str:
    out = StringIO()
    call_command("apply", "-f", str(file), *options, stdout=out)
    return out.getvalue()


def refused(file: Path, *options: str) -> list[str]:
    """The lines of the refusal on standard error, without the file's folder: the first is FILE:LINE already."""
    err = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("apply", "-f", str(file), *options, stdout=StringIO(), stderr=err)
    assert ended.value.code == 1
    lines = err.getvalue().replace(str(file), file.name).splitlines()
    assert lines[-1] == "nothing was changed"
    return lines[:-1]


def tenant_id(slug: str) -> UUID:
    found = tenant_id_of(slug)
    assert found is not None
    return found


def versions() -> dict[str, int]:
    return {ref.slug: ref.config_version for ref in all_tenants()}


def test_the_demo_applies_and_a_second_time_changes_nothing() -> None:
    """Idempotent: no output but that, and no version raised."""
    first = run(DEMO)
    assert "+ tenant acme" in first
    assert "+ acme: replica llama-private/private-1" in first
    assert "+ platform: grant shared-gpu to globex" in first
    before = versions()
    assert run(DEMO) == "no changes\n"
    assert versions() == before
    with tenant_scope(tenant_id("acme")):
        endpoint = Endpoint.objects.select_related("routing_policy__policy", "grant").get(name="llama-chat")
        assert endpoint.routing_policy.policy.name == "llama-chat"
        assert endpoint.request_context == ["repo"]
        assert ApiKey.objects.filter(digest=digest("sk-sr-acme-app-key-0123456789")).exists()


def test_secrets_are_not_printed() -> None:
    assert "0123456789" not in run(DEMO)


TINY = """\
tenants:
  - slug: acme
    scopes: [{path: support}]
    keys: [{name: app, scope: support, secret: env:ACME_KEY}]
    endpoints:
      - name: chat
        model: {name: m-7b, revision: r1, adapters: [{name: lora, revision: a1}]}
        context: {org_policy: v7}
        replicas: [{name: a, url: http://127.0.0.1:9001}]
        slo: {ttft_p95_ms: 2000}
"""


def test_the_form_of_the_issue_with_files(write: Write, tmp_path: Path) -> None:
    """Tokenizer and template become artifacts; relative paths are taken from the file's folder, wherever the command runs."""
    (tmp_path / "tokenizer.json").write_bytes(SMALL)
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    file = write(
        """\
tenants:
  - slug: acme
    scopes: [{path: support}, {path: support/emea}]
    keys: [{name: app, scope: support, secret: env:ACME_KEY}]
    endpoints:
      - name: llama-chat
        model: {name: m-7b, revision: r1, tokenizer: {path: ./tokenizer.json, chat_template: ./template.jinja, revision: t1}, adapters: []}
        engine: vllm
        context: {org_policy: v7, tools: v3}
        replicas: [{name: a, url: http://127.0.0.1:9001, kv_events: {endpoint: tcp://127.0.0.1:9101, replay: tcp://127.0.0.1:9201}}]
        routing_policy: {policy: ettft}
        slo: {ttft_p95_ms: 2000}
"""
    )
    assert "+ acme: artifact tokenizer.json sha256:" in run(file)
    assert run(file) == "no changes\n"
    with tenant_scope(tenant_id("acme")):
        endpoint = Endpoint.objects.select_related("model", "grant__pool").get()
        assert endpoint.grant.pool.name == "llama-chat"
        assert endpoint.model.tokenizer_revision == endpoint.model.chat_template_revision == "t1"
        assert endpoint.model.chat_template_digest is not None
    (tmp_path / "template.jinja").write_text("{{ messages }} ")
    assert "chat_template_sha256: " in run(file)


def test_changes_are_shown_field_by_field(write: Write) -> None:
    run(write(TINY))
    before = versions()["acme"]
    out = run(write(TINY.replace("v7", "v8").replace("r1", "r2").replace("a1", "a2").replace(":9001", ":9002").replace("2000", "1000")))
    assert out.splitlines() == [
        "~ acme: model m-7b",
        "    revision: r1 -> r2",
        "~ acme: adapter m-7b/lora",
        "    revision: a1 -> a2",
        "~ acme: replica chat/a",
        "    url: http://127.0.0.1:9001 -> http://127.0.0.1:9002",
        "~ acme: endpoint chat",
        "    context: {org_policy: v7} -> {org_policy: v8}",
        "    slo: chat v1 -> chat v2",
        "0 added, 4 changed, 0 removed",
    ]
    assert versions()["acme"] > before


def test_spelling_makes_no_difference(write: Write) -> None:
    """Another spelling of the same address, order and quoting change nothing."""
    run(write(TINY))
    spelled = TINY.replace("http://127.0.0.1:9001", '"HTTP://127.0.0.1:9001/v1/"').replace("revision: r1", 'revision: "r1"')
    assert run(write(spelled)) == "no changes\n"


def test_a_dry_run_does_it_all_and_rolls_it_back(write: Write) -> None:
    out = run(write(TINY), "--dry-run")
    assert out.startswith("+ tenant acme\n")
    assert out.endswith("dry run: nothing was changed\n")
    assert all_tenants() == []
    assert refused(write(TINY.replace("127.0.0.1:9001", "10.0.0.1:9001")), "--dry-run")


def test_a_key_follows_its_secret(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another secret under the same reference changes the key; one from a file loses its line end."""
    run(write(TINY))
    monkeypatch.setenv("ACME_KEY", "sk-sr-another-0123456789-0123456789")
    assert run(write(TINY)).splitlines()[:2] == ["~ acme: key app", "    secret: changed"]
    (tmp_path / "key.txt").write_text("sk-sr-another-0123456789-0123456789\n")
    assert run(write(TINY.replace("env:ACME_KEY", "file:key.txt"))) == "no changes\n"


def test_a_revoked_key_does_not_come_back(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that still names its secret must not undo a revocation; another secret makes a new key of the same name."""
    run(write(TINY))
    owner = tenant_id("acme")
    with tenant_scope(owner):
        key = ApiKey.objects.get(name="app")
        api_keys.revoke(tenant_id=owner, actor=system("test"), kind=Kind.INFERENCE, key_id=key.id, ceiling=Role.OWNER, now=timezone.now())
    assert refused(write(TINY)) == ["declared.yaml:4: tenants[0].keys[0].secret: This secret was revoked and stays so: give the key another one."]
    monkeypatch.setenv("ACME_KEY", "sk-sr-another-0123456789-0123456789")
    assert "+ acme: key app" in run(write(TINY))


def test_a_credential_is_sealed_once(write: Write) -> None:
    """The same credential again is no change, though every sealing differs; leaving it out takes it away."""
    with_credential = TINY.replace("9001}", "9001, credential: env:ACME_KEY}")
    run(write(with_credential))
    assert run(write(with_credential)) == "no changes\n"
    with tenant_scope(tenant_id("acme")):
        assert Replica.objects.get().credential is not None
    assert "credential: taken away" in run(write(TINY))
    with tenant_scope(tenant_id("acme")):
        assert Replica.objects.get().credential is None


def test_all_errors_of_a_file_come_at_once_with_their_lines(write: Write) -> None:
    """In the order of the file, each as FILE:LINE: field.path: message."""
    file = write(
        """\
colour: blue
tenants:
  - slug: Acme
    keys:
      - {name: app, secret: sk-sr-literal-secret-0123456789}
      - {name: app2, secret: env:NOT_SET}
      - {name: app3, secret: file:nowhere}
      - {name: app3, secret: env:ACME_KEY, expires_at: soon}
    endpoints:
      - name: chat
        model: {name: m, tokenizer: {path: ./missing.json}}
        engine: magic
        replicas: [{name: a, url: http://127.0.0.1:9001}]
        pool: both
        routing_policy:
          policy: weighted
          weights: {luck: 1}
        enabled: maybe
      - name: chat
        slug: x
"""
    )
    assert refused(file) == [
        "declared.yaml:1: colour: is not known here; known: pools, tenants",
        "declared.yaml:3: tenants[0].slug: Use 1 to 63 lower-case letters, digits and inner hyphens.",
        "declared.yaml:5: tenants[0].keys[0].secret: give a reference, env:NAME or file:PATH; a secret itself does not belong in a declaration",
        "declared.yaml:6: tenants[0].keys[1].secret: the environment variable NOT_SET is not set",
        "declared.yaml:7: tenants[0].keys[2].secret: nowhere is not a file, seen from the folder of this declaration",
        "declared.yaml:8: tenants[0].keys[3].expires_at: must be a time with its zone, such as 2027-01-31T12:00:00Z",
        "declared.yaml:10: tenants[0].endpoints[0]: needs either pool or replicas",
        "declared.yaml:11: tenants[0].endpoints[0].model.revision: is required",
        "declared.yaml:11: tenants[0].endpoints[0].model.tokenizer.path: ./missing.json is not a file, seen from the folder of this declaration",
        "declared.yaml:12: tenants[0].endpoints[0].engine: must be one of vllm, sglang, trtllm, llamacpp",
        "declared.yaml:17: tenants[0].endpoints[0].routing_policy.weights.luck: "
        "Unknown scorer; known: wait, prefill, tier, external_price, pressure, slo_guard, adapter.",
        "declared.yaml:18: tenants[0].endpoints[0].enabled: must be true or false",
        "declared.yaml:19: tenants[0].endpoints[1]: needs either pool or replicas",
        "declared.yaml:19: tenants[0].endpoints[1].model: is required",
        "declared.yaml:20: tenants[0].endpoints[1].slug: is not known here; known: "
        "adapter, candidate, client_subdivision, context, data_class, enabled, engine, isolation, model, name, own_cache, pool, replicas, "
        "request_context, routing_policy, served_model, sharing, slo",
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("tenants: [{slug: acme, slug: acme}]", ["declared.yaml:1: tenants[0].slug: is given twice"]),
        ("tenants:\n  - slug: acme\n tenants", ["declared.yaml:3: not YAML: expected <block end>, but found '<scalar>'"]),
        ("- a", ["declared.yaml:1: must be a mapping"]),
        ("tenants: {slug: acme}", ["declared.yaml:1: tenants: must be a list"]),
        ("tenants: [acme]", ["declared.yaml:1: tenants[0]: must be a mapping"]),
        ("a: 1\n---\nb: 2", ["declared.yaml:2: not YAML: but found another document"]),
        ("tenants: [{slug: acme, name: [x]}]", ["declared.yaml:1: tenants[0].name: must be text"]),
        ("tenants: [{slug: acme, name: yes}]", ["declared.yaml:1: tenants[0].name: must be text; put it in quotes"]),
        ("tenants: [{slug: acme, name: !!python/name:os.system x}]", ["declared.yaml:1: tenants[0].name: must be text; put it in quotes"]),
        (
            "tenants: [{slug: platform}]",
            ["declared.yaml:1: tenants[0].slug: the platform is no tenant; its pools are declared under pools at the top"],
        ),
        ("tenants: [{slug: a}, {slug: a}]", ["declared.yaml:1: tenants[1]: the tenant a is declared twice"]),
        ("pools: [{name: p, grants: [A]}]", ["declared.yaml:1: pools[0].grants[0]: Use 1 to 63 lower-case letters, digits and inner hyphens."]),
        (
            "tenants: [{slug: a, pools: [{name: p, grants: [b]}]}]",
            ["declared.yaml:1: tenants[0].pools[0].grants: is not known here; known: engine, isolation, name, replicas"],
        ),
        (
            "tenants: &t [{slug: a, scopes: *t}]",  # a circle of aliases ends where the format ends
            [
                "declared.yaml:1: tenants[0].scopes[0].path: is required",
                "declared.yaml:1: tenants[0].scopes[0].scopes: is not known here; known: path",
                "declared.yaml:1: tenants[0].scopes[0].slug: is not known here; known: path",
            ],
        ),
    ],
)
def test_what_is_no_declaration(write: Write, text: str, lines: list[str]) -> None:
    assert refused(write(text)) == lines


def test_a_literal_secret_is_not_repeated(write: Write) -> None:
    assert "literal" not in "".join(refused(write(TINY.replace("env:ACME_KEY", "sk-sr-literal-0123456789"))))


def test_a_missing_file_is_said_plainly(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere.yaml") == ["nowhere.yaml:1: cannot be read: No such file or directory"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}\n"])
def test_an_empty_file_is_refused(write: Write, text: str) -> None:
    """It is a mistake, such as a template that did not render; with --prune --prune-tenants it would have deleted everything."""
    run(write(TINY))
    expected = ["declared.yaml:1: is empty: a declaration has pools, tenants or both at the top"]
    assert refused(write(text)) == refused(write(text), "--prune", "--prune-tenants") == expected
    assert "acme" in {ref.slug for ref in all_tenants()}


def test_not_every_tenant_can_be_pruned(write: Write) -> None:
    """A file that names no tenant deletes none; where there is none to delete, it is as good as any."""
    assert run(write("tenants: []"), "--prune", "--prune-tenants") == "no changes\n"
    run(DEMO)
    assert refused(write("# nobody\ntenants: []"), "--prune", "--prune-tenants") == [
        "declared.yaml:2: tenants: names no tenant, so --prune-tenants would delete all of them (acme, globex); name at least one that stays"
    ]
    assert {ref.slug for ref in all_tenants()} == {"acme", "globex", "platform"}


def test_refusals_of_services_carry_lines_and_roll_everything_back(write: Write) -> None:
    """What only the database or the network rules know: all of them at once, and not even the good half is kept."""
    file = write(
        """\
pools:
  - name: shared
    grants: [acme, nobody]
tenants:
  - slug: acme
    scopes: [{path: support/emea}]
    keys:
      - {name: app, scope: nowhere, secret: env:ACME_KEY}
    endpoints:
      - name: chat
        model: {name: m-7b, revision: r1}
        replicas:
          - name: a
            url: http://10.0.0.1:9001
      - name: other
        model: absent
        adapter: lora
        pool: shared
"""
    )
    assert refused(file) == [
        "declared.yaml:3: pools[0].grants[1]: There is no tenant nobody.",
        "declared.yaml:6: tenants[0].scopes[0].path: Create its parent 'support' first.",
        "declared.yaml:8: tenants[0].keys[0].scope: There is no such scope.",
        "declared.yaml:14: tenants[0].endpoints[0].replicas[0].url: "
        "This address is on loopback, private or otherwise inner, or its name leads to one that is, and SALTROUTE_ALLOWED_RANGES "
        "(here: 127.0.0.0/8) does not name its range. Set it for routers and control plane alike; make up takes it. "
        "Names in .internal are refused in any case: give the address.",
        "declared.yaml:16: tenants[0].endpoints[1].model: This tenant has no model of this name.",
        "declared.yaml:17: tenants[0].endpoints[1].adapter: No model of this tenant has an adapter of this name.",
    ]
    assert all_tenants() == []


def test_everything_that_endpoints_name_and_nobody_has_comes_at_once(write: Write) -> None:
    """Of each endpoint and each kind, whether or not other endpoints are in order; each once."""
    file = write(
        """\
tenants:
  - slug: acme
    models: [{name: m, revision: r1, adapters: [{name: lora, revision: a1}]}]
    pools: [{name: gpu}]
    endpoints:
      - {name: good, model: m, adapter: lora, pool: gpu, routing_policy: {policy: ettft}}
      - {name: user, model: m, pool: gpu, routing_policy: good}
      - name: one
        model: absent
        adapter: nowhere
        pool: nobody
      - name: two
        model: m
        adapter: lara
        pool: gpu
        routing_policy: fast
        slo: {name: strict, version: 2}
"""
    )
    text = file.read_text()
    for _ in range(2):
        assert refused(write(text)) == [
            "declared.yaml:9: tenants[0].endpoints[2].model: This tenant has no model of this name.",
            "declared.yaml:10: tenants[0].endpoints[2].adapter: No model of this tenant has an adapter of this name.",
            "declared.yaml:11: tenants[0].endpoints[2].pool: This tenant has no pool of this name, and none is granted to it.",
            "declared.yaml:14: tenants[0].endpoints[3].adapter: The model m has no adapter of this name.",
            "declared.yaml:16: tenants[0].endpoints[3].routing_policy: There is no routing policy of this name.",
            "declared.yaml:17: tenants[0].endpoints[3].slo: There is no slo policy of this name.",
        ]
        run(write("tenants: [{slug: acme}]"))  # the same of a tenant that is there


def test_what_other_parts_of_the_file_bring_is_known(write: Write) -> None:
    """A pool that the same file grants, a policy of another endpoint, and what an earlier file brought."""
    run(
        write(
            """\
pools: [{name: shared, grants: [acme]}]
tenants:
  - slug: acme
    models: [{name: m, revision: r1}]
    routing_policies: [{name: fast, spec: {policy: ettft}}]
    endpoints:
      - {name: a, model: m, pool: shared, routing_policy: fast}
      - {name: b, model: m, pool: shared, slo: {ttft_p95_ms: 2000}}
"""
        )
    )
    again = "tenants: [{slug: acme, endpoints: [{name: c, model: m, pool: shared, routing_policy: fast, slo: b}]}]"
    assert "+ acme: endpoint c" in run(write(again))
    assert run(write(again)) == "no changes\n"


def test_a_grant_has_a_weight(write: Write) -> None:
    """Said once it stays; a file that says nothing of it changes nothing; another one changes the grant."""
    text = "pools: [{name: shared, grants: [{tenant: acme, weight: 2}]}]\ntenants: [{slug: acme}]"
    run(write(text))
    assert run(write(text)) == "no changes\n"
    assert run(write("pools: [{name: shared, grants: [acme]}]")) == "no changes\n"
    assert "weight: 2 -> 0.5" in run(write(text.replace("weight: 2", "weight: 0.5")))
    expected = ["declared.yaml:1: pools[0].grants[0].weight: must be a number from 0.01 to 100"]
    assert refused(write(text.replace("weight: 2", "weight: 0"))) == expected
    assert refused(write(text.replace("weight: 2", "weight: heavy"))) == expected


def test_a_key_names_endpoints_that_are_there(write: Write) -> None:
    """Of the file or of the tenant; anything else is a slip of the pen, which the key's user would meet as an unknown model."""
    limited = TINY.replace("scope: support, secret", "scope: support, endpoints: [chat, caht], secret")
    expected = "declared.yaml:4: tenants[0].keys[0].endpoints: This tenant has no endpoint caht, and the file declares none."
    assert refused(write(limited)) == [expected]
    run(write(limited.replace("chat, caht", "chat")))
    assert refused(write(limited)) == [expected]
    keys_alone = "tenants: [{slug: acme, keys: [{name: app, scope: support, endpoints: [chat], secret: env:ACME_KEY}]}]"
    assert run(write(keys_alone)) == "no changes\n"
    gone = keys_alone.replace("slug: acme", "slug: acme, endpoints: []")
    assert refused(write(gone), "--prune") == [
        "declared.yaml:1: tenants[0].keys[0].endpoints: This tenant has no endpoint chat, and the file declares none."
    ]
    run(write("tenants: [{slug: acme, endpoints: []}]"), "--prune")
    assert run(write(keys_alone)) == "no changes\n"  # what went before stays in the key's list, and an export of that is accepted


def test_the_diff_shows_what_keys_may_and_where_events_come_from(write: Write) -> None:
    """Of new ones and of changed ones; a key without a list may use all."""
    limited = TINY.replace("scope: support, secret", "scope: support, endpoints: [chat], expires_at: 2097-01-31T12:00:00Z, secret")
    limited = limited.replace("9001}", "9001, kv_events: {endpoint: tcp://127.0.0.1:9101}}")
    lines = run(write(limited)).splitlines()
    at = lines.index("+ acme: key app")
    assert lines[at + 1 : at + 5] == [
        "    scope: support",
        "    endpoints: [chat]",
        "    expires_at: 2097-01-31T12:00:00Z",
        "    secret: env:ACME_KEY",
    ]
    at = lines.index("+ acme: replica chat/a")
    assert lines[at + 1 : at + 3] == ["    url: http://127.0.0.1:9001", "    kv_events: {endpoint: tcp://127.0.0.1:9101}"]
    assert run(write(limited)) == "no changes\n"
    assert run(write(TINY)).splitlines()[:-1] == [
        "~ acme: replica chat/a",
        "    kv_events: {endpoint: tcp://127.0.0.1:9101} -> none",
        "~ acme: key app",
        "    endpoints: [chat] -> all",
        "    expires_at: 2097-01-31T12:00:00Z -> none",
    ]


def test_the_role_of_a_replica_is_shown_kept_and_taken_back(write: Write) -> None:
    """An unknown role, and a role that the engine's family cannot take, are refused at their place."""
    split = TINY.replace("9001}", "9001, role: prefill}")
    lines = run(write(split)).splitlines()
    at = lines.index("+ acme: replica chat/a")
    assert lines[at + 1 : at + 3] == ["    url: http://127.0.0.1:9001", "    role: prefill"]
    assert run(write(split)) == "no changes\n"
    assert run(write(TINY)).splitlines()[:-1] == ["~ acme: replica chat/a", "    role: prefill -> both"]
    (unknown,) = refused(write(TINY.replace("9001}", "9001, role: verifier}")))
    assert "must be one of both, prefill, decode" in unknown
    assert any("can only have the role both" in line for line in refused(write(TINY.replace("9001}", "9001, engine: llamacpp, role: decode}"))))


def test_the_limit_of_a_replica_is_shown_kept_and_taken_back(write: Write) -> None:
    limited = TINY.replace("9001}", "9001, max_concurrency: 3}")
    lines = run(write(limited)).splitlines()
    at = lines.index("+ acme: replica chat/a")
    assert lines[at + 1 : at + 3] == ["    url: http://127.0.0.1:9001", "    max_concurrency: 3"]
    assert run(write(limited)) == "no changes\n"
    assert run(write(limited.replace("max_concurrency: 3", "max_concurrency: 4"))).splitlines()[:-1] == [
        "~ acme: replica chat/a",
        "    max_concurrency: 3 -> 4",
    ]
    for wrong in ("0", "100001"):
        (told,) = refused(write(TINY.replace("9001}", f"9001, max_concurrency: {wrong}}}")))
        assert "max_concurrency" in told
        assert "must be a whole number from 1 to 100000" in told
    assert run(write(TINY)).splitlines()[:-1] == ["~ acme: replica chat/a", "    max_concurrency: 4 -> none"]


@pytest.mark.parametrize("adapter", ["", "adapter: lora, "])
def test_a_served_model_that_is_the_default_is_no_change(write: Write, adapter: str) -> None:
    """Written out or left out, it is the same; another name is a change, once."""
    name = "lora" if adapter else "m"
    text = """\
tenants:
  - slug: acme
    models: [{name: m, revision: r1, adapters: [{name: lora, revision: a1}]}]
    endpoints: [{name: chat, model: m, ADAPTERserved_model: NAME, replicas: []}]
""".replace("ADAPTER", adapter)
    written = text.replace("NAME", name)
    run(write(written))
    assert run(write(written)) == "no changes\n"
    assert run(write(text.replace("served_model: NAME, ", ""))) == "no changes\n"
    assert run(write(written)) == "no changes\n"
    assert "    served_model: none -> other" in run(write(text.replace("NAME", "other")))
    assert run(write(text.replace("NAME", "other"))) == "no changes\n"
    assert "    served_model: other -> none" in run(write(written))


def test_a_model_may_be_written_out_twice_if_it_is_the_same(write: Write) -> None:
    twice = """\
tenants:
  - slug: acme
    endpoints:
      - {name: a, model: {name: m, revision: r1}, replicas: []}
      - {name: b, model: {name: m, revision: r1}, pool: a}
"""
    run(write(twice))
    assert refused(write(twice.replace("b, model: {name: m, revision: r1}", "b, model: {name: m, revision: r2}"))) == [
        "declared.yaml:5: tenants[0].endpoints[1].model: the model m is declared differently at line 4; declare it once and use its name"
    ]


def test_pruning_removes_what_the_named_tenants_have_beyond_the_file(write: Write) -> None:
    """Endpoints, pools, replicas, models, adapters, scopes and policies; other tenants and keys stay."""
    run(DEMO)
    file = write(TINY.replace("keys: [{name: app, scope: support, secret: env:ACME_KEY}]", "keys: []").replace(":9001", ":9051"))
    assert "- " not in run(file)
    out = run(file, "--prune")
    for line in (
        "- acme: endpoint llama-chat",
        "- acme: endpoint llama-private",
        "- acme: replica llama-private/private-1",
        "- acme: pool llama-private",
        "- acme: model sim-8b",
        "- acme: routing policy llama-chat",
        "- acme: slo policy llama-private",
    ):
        assert line in out.splitlines()
    assert "key" not in out
    assert {ref.slug for ref in all_tenants()} == {"acme", "globex", "platform"}
    with tenant_scope(tenant_id("acme")):
        assert list(Endpoint.objects.values_list("name", flat=True)) == ["chat"]
        assert list(Pool.objects.values_list("name", flat=True)) == ["chat"]
        assert ApiKey.objects.filter(kind="inference", revoked_at=None).count() == 4
    assert run(file, "--prune") == "no changes\n"


def test_scopes_that_keys_are_bound_to_stay(write: Write) -> None:
    """Keys are not pruned, so what they are bound to is not either."""
    run(DEMO)
    out = run(write("tenants: [{slug: acme, scopes: [{path: support}, {path: extra}]}]"))
    assert out.splitlines()[0] == "+ acme: scope extra"
    assert run(write("tenants: [{slug: acme, scopes: []}]"), "--prune").splitlines() == ["- acme: scope extra", "0 added, 0 changed, 1 removed"]


def test_tenants_and_keys_need_a_word_of_their_own(write: Write) -> None:
    run(DEMO)
    with pytest.raises(CommandError, match="goes with --prune"):
        run(write(TINY), "--prune-tenants")
    file = write(TINY.replace(":9001", ":9051"))
    out = run(file, "--prune", "--prune-tenants")
    assert "- tenant globex" in out
    assert "- acme: key emea" in out
    assert {ref.slug for ref in all_tenants()} == {"acme", "platform"}
    with tenant_scope(tenant_id("acme")):
        assert list(ApiKey.objects.filter(kind="inference", revoked_at=None).values_list("name", flat=True)) == ["app"]
    assert run(file, "--prune", "--prune-tenants") == "no changes\n"


def test_platform_pools_are_pruned_only_by_their_section(write: Write) -> None:
    """A file without ``pools`` leaves them; one with an empty list takes grants, replicas and pool away, when nobody sits on them."""
    run(DEMO)
    assert "shared-gpu" not in run(write("tenants: []"), "--prune")
    assert refused(write("pools: []"), "--prune")
    run(write("pools: []\ntenants: [{slug: acme, endpoints: []}, {slug: globex, endpoints: []}]"), "--prune")
    with tenant_scope(tenant_id("platform")):
        assert Pool.objects.count() == Replica.objects.count() == 0


def test_members(write: Write) -> None:
    """Added, changed, and with --prune removed; without the section they are left alone."""
    run(write("tenants: [{slug: acme, members: [{email: Ann@Example.com, role: owner}, {email: bob@example.com}]}]"))
    out = run(write("tenants: [{slug: acme, members: [{email: ann@example.com, role: owner}, {email: bob@example.com, role: admin}]}]"))
    assert out.splitlines()[:2] == ["~ acme: member bob@example.com", "    role: viewer -> admin"]
    assert run(write("tenants: [{slug: acme}]"), "--prune") == "no changes\n"
    assert "- acme: member bob@example.com" in run(write("tenants: [{slug: acme, members: [{email: ann@example.com, role: owner}]}]"), "--prune")
    assert refused(write("tenants: [{slug: acme, members: []}]"), "--prune")


def test_a_replica_moves_between_pools_in_one_run(write: Write) -> None:
    """What goes frees its address before what comes takes it, across tenants too."""
    run(write(TINY))
    moved = TINY.replace("replicas: [{name: a, url: http://127.0.0.1:9001}]", "replicas: []") + (
        "  - slug: globex\n    pools: [{name: p, replicas: [{name: a, url: http://127.0.0.1:9001}]}]\n"
    )
    assert refused(write(moved))
    out = run(write(moved), "--prune")
    assert out.splitlines()[0] == "- acme: replica chat/a"


def test_a_pinned_policy_version(write: Write) -> None:
    """By name an endpoint follows the newest document of the file; with a version it stays."""
    text = """\
tenants:
  - slug: acme
    routing_policies: [{name: p, spec: {policy: ettft}}]
    endpoints:
      - {name: follows, model: {name: m, revision: r}, replicas: [], routing_policy: p}
      - {name: stays, model: m, pool: follows, routing_policy: {name: p, version: 1}}
"""
    run(write(text))
    out = run(write(text.replace("policy: ettft", "policy: round_robin")))
    assert out.splitlines() == [
        "~ acme: routing policy p",
        "    v1 -> v2: {policy: ettft} -> {policy: round_robin}",
        "~ acme: endpoint follows",
        "    routing_policy: p v1 -> p v2",
        "0 added, 2 changed, 0 removed",
    ]
    assert "routing_policy.version: This policy has no such version." in refused(write(text.replace("version: 1", "version: 9")))[0]


def test_suspending_by_declaration(write: Write) -> None:
    run(write("tenants: [{slug: acme, name: Acme Inc}]"))
    out = run(write("tenants: [{slug: acme, suspended: true}]"))
    assert out.splitlines()[:2] == ["~ tenant acme", "    suspended: false -> true"]
    with tenant_scope(tenant_id("acme")):
        assert Tenant.objects.get().suspended
