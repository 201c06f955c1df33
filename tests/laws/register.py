"""The register of mutants: each a small change that breaks one law of isolation, and the tests that must notice.

A mutant names its place by text, which must occur there exactly once, so that a change of the code cannot silently turn it into nothing. Its
tests are the smallest set that holds the law, never the whole suite: a law that only some far-away test notices is not held.
"""

from __future__ import annotations

from dataclasses import dataclass

from namespaces.core.components import COMPONENTS
from routing.core.engines.common import STRIPPED

IDENTITY = ("tests/namespaces/core/test_identity.py",)
COMPONENT = tuple(
    f"{IDENTITY[0]}::{test}"
    for test in ("test_any_single_change_changes_the_encoding", "test_scope_key_and_nonce_count_at_their_sharing_levels_only")
)
SALTS = ("tests/namespaces/core/test_salts.py",)
KEYRING = ("tests/namespaces/core/test_keyring.py",)
SUBJECT = ("tests/routing/core/test_subject.py",)
SNAPSHOT = ("tests/routing/core/test_snapshot.py",)
ENGINES = ("tests/routing/core/test_engines.py",)
FILTERS = ("tests/routing/core/test_filters.py",)
SIGNED = ("tests/namespaces/core/test_signed.py",)
BODY = ("tests/routing/core/test_body.py",)
ROW_SECURITY = ("tests/contracts/test_row_level_security.py",)
STRANGERS = ("tests/contracts/test_strangers.py::test_in_every_header",)
KV_EVENTS = "tests/routing/core/test_kv_events.py"
EVENT_INDEX = "tests/routing/core/test_event_index.py"
EVENT_LAWS = "tests/routing/core/test_event_index_laws.py"
BY_HASH = "tests/routing/core/test_event_by_hash.py"
EVENT_CLAIMS = "tests/routing/core/test_event_claims.py"
EVENT_WINDOWS = "tests/routing/core/test_event_windows.py"
KV_UNKNOWN = "tests/routing/dataplane/feeds/test_kv_unknown.py"
TOKENS = "tests/routing/dataplane/test_tokens_hostile.py"
SANDBOX = "tests/routing/prompts/test_sandbox.py"
SEGMENTS = "tests/routing/prompts/test_segments.py"
CAPTURE = "tests/routing/core/test_capture.py"
CAPTURES = "tests/routing/services/test_captures.py"
PLANE_CAPTURES = "tests/routing/dataplane/test_captures.py"
SECOND_FACTOR = "tests/tenants/core/test_second_factor.py"
SECOND_FACTORS = "tests/tenants/services/test_second_factors.py"
SIGN_IN_CODE = "tests/console/views/test_second_factor.py"
SIGN_INS = "tests/tenants/services/test_sign_ins.py"
INVITATIONS = "tests/tenants/services/test_invitations.py"
TRACES = "tests/routing/traces"
TRACE_JOBS = "tests/routing/services/traces"
RECONCILE = ("tests/routing/core/test_reconcile.py",)
TRANSFER = ("tests/routing/core/test_transfer.py",)
PAIRS = ("tests/routing/core/test_pairs.py",)
PLANE_TRANSFERS = "tests/routing/dataplane/test_transfers.py"
QUOTA = "tests/routing/core/test_quota.py"
QUOTAS = "tests/routing/services/test_quotas.py"
PLANE_QUOTAS = "tests/routing/dataplane/test_quotas.py"
PLAYGROUND = "tests/console/views/test_playground.py"
RANKS = "tests/routing/core/test_ranks.py"
PLANE_RANKS = "tests/routing/dataplane/test_ranks.py"
PLANE_ISOLATION = ("tests/routing/dataplane/test_isolation.py",)
PLANE_AUTHENTICATION = ("tests/routing/dataplane/test_authentication.py",)
PLANE_SNAPSHOTS = ("tests/routing/dataplane/test_snapshots.py",)
FORMER_TEXTS = ("tests/tenants/services/test_former_texts.py",)
OBJECTIVE = "tests/routing/dataplane/test_objective.py"
BUILD = "tests/routing/core/test_build.py"
PREPARE = "tests/routing/prompts/test_prepare.py"
PROMPTS = "tests/routing/prompts/test_service.py"
VERDICT = "tests/routing/core/test_verdict.py"
REQUEST_SHAPES = "tests/routing/dataplane/test_request_shapes.py"
FIRST_BYTE = "tests/routing/dataplane/test_first_byte.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: in ``file``, ``old`` (which occurs once) becomes ``new``; ``tests`` must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _module(component: str) -> str:
    """The module of a component, which bears its name; the register of components imports them so."""
    return f"    {component}.COMPONENT,\n"


_IDENTITY = [
    *(Mutant(f"identity without {one.name}", "namespaces/core/components/__init__.py", _module(one.name), "", COMPONENT) for one in COMPONENTS),
    Mutant(
        "texts joined instead of encoded",
        "namespaces/core/identity.py",
        "return cbor2.dumps([SCHEMA, [[name, value] for name, value in parts(subject)]], canonical=True)",
        'return "/".join(f"{name}={value}" for name, value in parts(subject)).encode()',
        IDENTITY,
    ),
    Mutant(
        "parts of the model joined",
        "namespaces/core/components/model.py",
        "return [model.name, model.revision, model.quantisation, model.kv_dtype]",
        "return [model.name + model.revision, model.quantisation, model.kv_dtype]",
        IDENTITY,
    ),
    Mutant(
        "null encoded as empty",
        "namespaces/core/components/multimodal.py",
        "return subject.multimodal_processor",
        'return subject.multimodal_processor or ""',
        IDENTITY,
    ),
    Mutant(
        "null inside a component encoded as empty",
        "namespaces/core/components/model.py",
        "model.quantisation, model.kv_dtype]",
        'model.quantisation or "", model.kv_dtype]',
        IDENTITY,
    ),
    Mutant(
        "empty treated as absent",
        "namespaces/core/components/client.py",
        "if subject.client_subdivision is None else",
        "if not subject.client_subdivision else",
        IDENTITY,
    ),
    Mutant(
        "Unicode normalised",
        "namespaces/core/components/client.py",
        "else subject.client_subdivision",
        'else __import__("unicodedata").normalize("NFC", subject.client_subdivision)',
        IDENTITY,
    ),
    Mutant("schema version left out", "namespaces/core/identity.py", "dumps([SCHEMA, [[", "dumps([0, [[", IDENTITY),
]

_KEYS = [
    Mutant(
        "tenant not bound in key wrapping",
        "namespaces/core/keyring.py",
        '[tenant_id.bytes, version, "tenant-key"]',
        '[version, "tenant-key"]',
        KEYRING,
    ),
    Mutant(
        "version not bound in key wrapping",
        "namespaces/core/keyring.py",
        '[tenant_id.bytes, version, "tenant-key"]',
        '[tenant_id.bytes, "tenant-key"]',
        KEYRING,
    ),
    Mutant(
        "credential not bound to its replica",
        "namespaces/core/keyring.py",
        '["replica-credential", tenant_id.bytes, replica_id.bytes]',
        '["replica-credential", tenant_id.bytes]',
        KEYRING,
    ),
    Mutant("one label for salt and index seed", "namespaces/core/salts.py", 'expand("index-seed")', 'expand("engine-salt")', SALTS),
    Mutant("one label for salt and public id", "namespaces/core/salts.py", 'expand("namespace-id")', 'expand("engine-salt")', SALTS),
    Mutant(
        "salt derived without the tenant's key", "namespaces/core/salts.py", 'hmac.digest(b"saltroute/v1", key.secret, sha256)', "bytes(32)", SALTS
    ),
    Mutant("another tenant's key accepted", "namespaces/core/salts.py", "if key.tenant_id != subject.tenant_id:", "if False:", SALTS),
]

_SUBJECT = [
    *(
        Mutant(f"subject without the {name}", "routing/core/subject.py", old, new, SUBJECT)
        for name, old, new in (
            ("scope's own version", "version=scopes[level].version)", "version=1)"),
            ("weights' revision", "revision=model.revision, quantisation", 'revision="", quantisation'),
            ("quantisation", "quantisation=model.quantisation,", "quantisation=None,"),
            ("KV dtype", "kv_dtype=model.kv_dtype)", "kv_dtype=None)"),
            ("tokenizer", "tokenizer=_artifact(model.tokenizer),", "tokenizer=Artifact(None, None),"),
            ("chat template", "chat_template=_artifact(model.chat_template),", "chat_template=Artifact(None, None),"),
            ("file's digest", "digest=reference.digest,", "digest=None,"),
            ("tenant's epoch", "(tenant.epoch, endpoint.epoch)", "(1, endpoint.epoch)"),
            ("endpoint's epoch", "(tenant.epoch, endpoint.epoch)", "(tenant.epoch, 1)"),
            ("adapter's generation", "generation=adapter.generation)", "generation=1)"),
            ("request's context", "{**endpoint.context, **request_context}", "{**endpoint.context}"),
            ("endpoint's context", "{**endpoint.context, **request_context}", "{**request_context}"),
            ("multimodal processor", "multimodal_processor=model.multimodal_processor,", "multimodal_processor=None,"),
            ("data class", "data_class=endpoint.data_class,", "data_class=None,"),
            ("endpoint kept apart", "endpoint.id if endpoint.own_cache else None", "None"),
        )
    ),
    Mutant(
        "a client subdivides where it may not",
        "routing/core/subject.py",
        "client_subdivision if endpoint.client_subdivision else None",
        "client_subdivision",
        SUBJECT,
    ),
]

# Names are kept for each snapshot under a question; one part of it forgotten and two callers share a name.
_QUESTION = "question = (endpoint.id, scope_path, key_id, tuple(sorted(context.items())), subdivision)"
_NAMES = [
    Mutant(
        f"kept names forget the {name}",
        "routing/dataplane/view.py",
        _QUESTION,
        _QUESTION.replace(part, "None"),
        ("tests/routing/dataplane/test_view.py",),
    )
    for name, part in (
        ("endpoint", "endpoint.id"),
        ("scope", "scope_path"),
        ("key", "key_id"),
        ("context", "tuple(sorted(context.items()))"),
        ("client's subdivision", "subdivision"),
    )
]

_DATABASE = [
    Mutant("policies not forced", "tenants/rls.py", """        f'ALTER TABLE "{table}" FORCE ROW LEVEL SECURITY',\n""", "", ROW_SECURITY),
    Mutant("policies not enabled", "tenants/rls.py", """        f'ALTER TABLE "{table}" ENABLE ROW LEVEL SECURITY',\n""", "", ROW_SECURITY),
    Mutant("policy dropped", "tenants/rls.py", "f'CREATE POLICY tenant_rows ON", "f'-- CREATE POLICY tenant_rows ON", ROW_SECURITY),
    Mutant(
        "policy lets every row be read",
        "tenants/rls.py",
        """USING ("{column}" = {CURRENT_TENANT}) WITH""",
        "USING (true) WITH",
        ROW_SECURITY,
    ),
    Mutant(
        "one table forgotten", "routing/migrations/0002_row_level_security.py", '        rls.tenant_rows("routing_endpoint"),\n', "", ROW_SECURITY
    ),
    Mutant("definer functions without a search_path", "tenants/rls.py", 'f"SET search_path = pg_catalog, public AS', 'f"AS', ROW_SECURITY),
    Mutant(
        "definer functions owned by the owner",
        "tenants/rls.py",
        '            f"ALTER FUNCTION {drop} OWNER TO {DEFINER}",\n',
        "",
        ROW_SECURITY,
    ),
    Mutant(
        "audit log can be rewritten",
        "tenants/migrations/0002_row_level_security.py",
        'rls.tenant_rows("tenants_auditentry", app="SELECT, INSERT")',
        'rls.tenant_rows("tenants_auditentry", app="SELECT, INSERT, UPDATE")',
        ROW_SECURITY,
    ),
    Mutant(
        "composite foreign key dropped",
        "routing/migrations/0002_row_level_security.py",
        '        rls.composite_foreign_key("routing_endpoint", "model_id", "routing_modelspec"),\n',
        "",
        ROW_SECURITY,
    ),
    Mutant(
        "foreign keys without the tenant",
        "tenants/rls.py",
        'FOREIGN KEY (tenant_id, "{column}") REFERENCES "{to_table}" (tenant_id, id) ',
        'FOREIGN KEY ("{column}") REFERENCES "{to_table}" (id) ',
        ROW_SECURITY,
    ),
]

_STRIPPING = [
    *(Mutant(f"{field} not stripped", "routing/core/engines/common.py", f'        "{field}",\n', "", ENGINES) for field in sorted(STRIPPED)),
    Mutant(
        "one route not stripped",
        "routing/dataplane/outgoing.py",
        "    try:\n        return bodies.edit(",
        '    if flight.route == "completions":\n'
        "        return bodies._join((name, bytes(raw)) for name, raw in call.body.members.items())\n"
        "    try:\n        return bodies.edit(",
        PLANE_ISOLATION,
    ),
    Mutant("vendor objects not stripped", "routing/core/body.py", "elif name in engine.stripped_inside:", "elif False:", BODY),
    Mutant(
        "client's salt forwarded",
        "routing/dataplane/outgoing.py",
        "salt=namespace.salt",
        'salt=call.body.value.get("cache_salt") or namespace.salt',
        PLANE_ISOLATION,
    ),
    Mutant("salt not injected", "routing/core/body.py", "        edited[engine.salt_field] = _encode(salt)\n", "        pass\n", BODY),
    Mutant(
        "outgoing body not read again",
        "routing/core/body.py",
        "    check_salt(outgoing, engine=engine, salt=salt, members=len(edited), transfer=transfer)\n",
        "",
        PLANE_ISOLATION,
    ),
    Mutant("duplicate keys accepted", "routing/core/body.py", "if len(value) != len(pairs):", "if False:", BODY),
    Mutant("public id sent as salt", "routing/dataplane/outgoing.py", "salt=namespace.salt", "salt=namespace.public_id", PLANE_ISOLATION),
]

_SNAPSHOTS = [
    Mutant(
        "signature not checked",
        "routing/core/snapshot.py",
        "        Ed25519PublicKey.from_public_bytes(publish_public_key).verify(signature, info + sealed)\n",
        "",
        SNAPSHOT,
    ),
    Mutant(
        "document not bound to its tenant", "routing/core/snapshot.py", '["snapshot", tenant_id.bytes, version]', '["snapshot", version]', SNAPSHOT
    ),
    Mutant(
        "document's own tenant and version not read",
        "routing/core/snapshot.py",
        "if snapshot.tenant_id != tenant_id or snapshot.version != version:",
        "if False:",
        SNAPSHOT,
    ),
    Mutant(
        "older versions applied",
        "routing/dataplane/feeds/snapshots.py",
        "            if version < mark:\n",
        "            if False:\n",
        PLANE_SNAPSHOTS,
    ),
    Mutant(
        "high-water mark not kept on disk",
        "routing/dataplane/feeds/snapshots.py",
        "            self._marks[tenant_id] = max(mark, self._marks.get(tenant_id, 0))\n",
        "            pass\n",
        PLANE_SNAPSHOTS,
    ),
    Mutant(
        "revoked keys still published",
        "tenants/queries.py",
        "kind=Kind.INFERENCE.value, revoked_at=None, scope__isnull=False)",
        "kind=Kind.INFERENCE.value, scope__isnull=False)",
        ("tests/routing/services/test_publishing.py",),
    ),
]

_CALLERS = [
    Mutant(
        "another tenant's key accepted under /t/",
        "routing/dataplane/authenticate.py",
        "    if tenant_slug is not None and tenant_slug != grant.tenant.snapshot.slug:\n",
        "    if False:\n",
        PLANE_AUTHENTICATION,
    ),
    Mutant("scope not checked", "routing/dataplane/authenticate.py", " or not scopes.contains(own, path)", "", PLANE_AUTHENTICATION),
    Mutant(
        "expired keys accepted",
        "routing/dataplane/authenticate.py",
        "if grant.key.expires_at is None or now < grant.key.expires_at]",
        "]",
        PLANE_AUTHENTICATION,
    ),
    Mutant(
        "undeclared context accepted",
        "routing/dataplane/authenticate.py",
        " or name not in endpoint.request_context",
        "",
        PLANE_AUTHENTICATION,
    ),
    Mutant(
        "a digest of two tenants opens one",
        "routing/dataplane/view.py",
        "            del keys[digest]\n",
        "            pass\n",
        PLANE_AUTHENTICATION,
    ),
    Mutant(
        "a key's list of models ignored",
        "routing/dataplane/request_path.py",
        " or (allowed is not None and model not in allowed)",
        "",
        PLANE_AUTHENTICATION,
    ),
    Mutant(
        "one index seed for all namespaces",
        "routing/dataplane/choose.py",
        "prefix.chain(namespace.index_seed, call.prompt)",
        "prefix.chain(bytes(32), call.prompt)",
        ("tests/routing/dataplane/test_choose.py",),
    ),
    Mutant(
        "index answers across namespaces",
        "routing/core/stretches.py",
        "row = self.where.get(namespace)",
        "row = next((row for row in self.where.values() if digests and digests[0] in row), None)",
        ("tests/routing/core/test_residency.py",),
    ),
]

_RECONCILIATION = [
    Mutant("a granted pool's replicas are named to a tenant", "routing/core/reconcile.py", "    if endpoint.own:", "    if True:", RECONCILE),
    Mutant(
        "another tenant's samples are told",
        "routing/core/reconcile.py",
        "if one.endpoint_id == endpoint.id})",
        "if True})",
        RECONCILE,
    ),
    Mutant(
        "a rolled back configuration is published again",
        "routing/core/reconcile.py",
        'repairable=reason != "rollback"',
        "repairable=True",
        RECONCILE,
    ),
]

_OUTWARD = [
    Mutant(
        "guard at connect time off",
        "routing/outbound/guard.py",
        "        if not address_allowed(",
        "        if False and not address_allowed(",
        ("tests/routing/outbound/test_guard.py",),
    ),
    Mutant(
        "event sockets connect anywhere",
        "routing/outbound/literal.py",
        "        if address_allowed(one, allowed_ranges):",
        "        if True:",
        ("tests/routing/outbound/test_literal.py", "tests/routing/dataplane/feeds/test_kv.py::test_events_come_from_checked_addresses_only"),
    ),
    Mutant(
        "event sockets checked once only",
        "routing/dataplane/feeds/kv_subscription.py",
        "            address = await checked_literal(host, config.allowed_ranges, self._feed.resolver)",
        "            address = self._at = getattr(self, '_at', '') or await checked_literal(host, config.allowed_ranges, self._feed.resolver)",
        ("tests/routing/dataplane/feeds/test_kv.py::test_the_address_is_checked_again_before_every_connection",),
    ),
    Mutant(
        "a process that says as much as the last one is taken for it",
        "routing/core/sequence.py",
        " or hash(batch) != self._mark:",
        ":",
        ("tests/routing/core/test_sequence.py",),
    ),
    Mutant(
        "a process that has said less than the last one is taken for it",
        "routing/core/sequence.py",
        "        if not self._proved:\n",
        "        if False:\n",
        ("tests/routing/core/test_sequence.py",),
    ),
    Mutant(
        "what names a block's media is built",
        "routing/core/kv_events_trtllm.py",
        "    mm_keys: msgspec.Raw = msgspec.Raw()",
        "    mm_keys: list[object] | None = None",
        ("tests/routing/core/test_kv_events_trtllm.py",),
    ),
    Mutant(
        "a replay is read without a bound",
        "routing/dataplane/feeds/kv_sockets.py",
        "        if not self.cut and not self._admit(0):\n",
        "        if False:\n",
        ("tests/routing/dataplane/feeds/test_kv_sockets.py",),
    ),
    Mutant(
        "answers without number go into messages between routers",
        "routing/dataplane/openai.py",
        "    return min(MAX_SEQUENCES, prompts *",
        "    return max(1, prompts *",
        ("tests/routing/dataplane/feeds/test_peers.py",),
    ),
    Mutant(
        "uses of a clock that was set back stay in the window",
        "routing/core/quota.py",
        " and slot * SLOT_S <= now_s + WINDOW_S\n",
        "\n",
        ("tests/routing/core/test_quota.py",),
    ),
    Mutant(
        "a message of events without end is read in one go",
        "routing/core/zmtp.py",
        "        if self._frames_seen > MAX_MESSAGE_FRAMES:\n",
        "        if False:\n",
        ("tests/routing/core/test_zmtp.py",),
    ),
    Mutant(
        "who asks heartbeats and reads no answers is kept",
        "routing/dataplane/feeds/kv_sockets.py",
        "            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:\n",
        "            if False:\n",
        ("tests/routing/dataplane/feeds/test_kv_sockets.py",),
    ),
    Mutant(
        "an epoch of a shared pool's tenant spends what another build needs",
        "routing/services/audits/orders.py",
        "        if left < needed_tokens + kept:\n",
        "        if left < needed_tokens:\n",
        ("tests/routing/services/audits/test_calendar.py",),
    ),
    Mutant(
        "restarts of a proved build spend what another build needs",
        "routing/services/audits/orders.py",
        "    return KEPT_RUNS if restarted else 0\n",
        "    return 0\n",
        ("tests/routing/services/audits/test_calendar.py",),
    ),
    Mutant(
        "a restart of what no audit has proved is tried shortly",
        "routing/services/audits/orders.py",
        'run.trigger == "restart" and first.isolation_state == State.ISOLATED',
        'run.trigger == "restart"',
        ("tests/routing/services/audits/test_calendar.py",),
    ),
    Mutant(
        "an audit that the day's tokens refused is ordered again with every plan",
        "routing/services/audits/calendar.py",
        "            if _refused_lately(user, due, now):\n",
        "            if False:\n",
        ("tests/routing/services/audits/test_calendar.py",),
    ),
    Mutant(
        "the bound evicts an owner's blocks in place of what was forgotten",
        "routing/core/event_holdings.py",
        "                if leaf.segment not in self.segments:",
        "                if False:",
        (EVENT_INDEX,),
    ),
    Mutant(
        "what was forgotten is taken apart at once",
        "routing/core/event_tables.py",
        "        count = min(most, len(held))\n",
        "        count = len(held)\n",
        (EVENT_INDEX,),
    ),
    Mutant(
        "blocks of a namespace that was dropped are still known by their hashes",
        "routing/core/event_holdings.py",
        "return None if type(found) is Block and found.segment not in self.segments else found",
        "return found",
        (EVENT_INDEX,),
    ),
    Mutant(
        "sweeping a dropped namespace takes what came again since",
        "routing/core/event_tables.py",
        "            if known.get(block.hash) is block:\n",
        "            if block.hash in known:\n",
        (EVENT_INDEX,),
    ),
    Mutant(
        "new blocks come faster than forgotten ones go",
        "routing/core/event_index.py",
        "self._sweep_slice + 2 * sum(",
        "self._sweep_slice + 0 * sum(",
        (EVENT_INDEX,),
    ),
    Mutant(
        "two short outages are one long one",
        "routing/core/findings.py",
        "now_s - first_s if finding.lasted_s is None else finding.lasted_s",
        "now_s - first_s",
        ("tests/routing/core/test_findings.py",),
    ),
    Mutant(
        "a parent that is named a thousand times is looked at as often",
        "routing/core/event_contents.py",
        "for hash_ in dict.fromkeys(hashes[: len(positions)]):",
        "for hash_ in hashes[: len(positions)]:",
        (EVENT_INDEX,),
    ),
    Mutant(
        "what comes in while a source closes stays on its account",
        "routing/dataplane/feeds/kv_subscription.py",
        "        if self._closed:  # what still comes",
        "        if False:  # what still comes",
        ("tests/routing/dataplane/feeds/test_kv.py",),
    ),
    Mutant(
        "an engine that changes all the time fills the report",
        "routing/dataplane/residency.py",
        "        return told < TOLD",
        "        return True",
        ("tests/routing/dataplane/test_residency.py",),
    ),
    Mutant(
        "one owner's events take what is another's",
        "routing/core/byte_budget.py",
        "self.used_bytes + more <= self.whole_bytes // 2",
        "self.used_bytes + more <= self.whole_bytes",
        ("tests/routing/core/test_byte_budget.py",),
    ),
    Mutant(
        "a second factor's secret that another session was shown goes on",
        "tenants/services/second_factors.py",
        "    if secret is None or not compare_digest(_mark(rules.as_text(secret)), mark):\n",
        "    if secret is None:\n",
        ("tests/tenants/services/test_second_factors.py", "tests/console/views/test_second_factor.py"),
    ),
    Mutant(
        "what an engine says unasked is taken for the next answer",
        "routing/dataplane/upstream.py",
        "    if protocol.should_close:\n        return True\n",
        "    return False\n",
        ("tests/routing/dataplane/test_upstream.py",),
    ),
    Mutant(
        "a connection kept although its request was not taken to the end",
        "routing/dataplane/upstream.py",
        "    return 0 if connection.transport is None else connection.transport.get_write_buffer_size()\n",
        "    return 0\n",
        ("tests/routing/dataplane/test_upstream.py",),
    ),
    Mutant(
        "a decision overlooks a term that its candidates show",
        "routing/core/scheduler.py",
        "        scores.append(sum(terms))\n",
        "        scores.append(sum(terms[1:]))\n",
        ("tests/routing/core/test_weighing.py",),
    ),
    Mutant(
        "a decision's near-ties in another order than the policy's",
        "routing/core/scheduler.py",
        "estimate.uncached_tokens if tied else score_s",
        "score_s",
        ("tests/routing/core/test_weighing.py", "tests/routing/core/test_scheduler.py"),
    ),
    Mutant(
        "wide blocks of history count like narrow ones",
        "routing/core/prefix.py",
        "    return blocks if blocks <= FINE_BLOCKS else FINE_BLOCKS + (blocks - FINE_BLOCKS) * _WIDTH\n",
        "    return blocks\n",
        ("tests/routing/core/test_prefix.py",),
    ),
    Mutant(
        "a replica's share of history is bounded by blocks, not by what they cover",
        "routing/core/stretches.py",
        "self.size += self.extent(above.blocks + len(digests)) - self.extent(above.blocks + place)",
        "self.size += len(rest)",
        ("tests/routing/core/test_stretches.py",),
    ),
    Mutant(
        "an engine's state is remembered although it changed",
        "routing/dataplane/residency.py",
        "        self.ranks[target[0]][target[1]] = after[0]\n        self._forget_shown(target[0])\n",
        "        self.ranks[target[0]][target[1]] = after[0]\n",
        ("tests/routing/dataplane/test_residency.py",),
    ),
    Mutant(
        "history that grew old counts beside events",
        "routing/core/stretches.py",
        "if shown_s is not None and shown_s < since_s and not stretch.pending:",
        "if False:",
        ("tests/routing/core/test_residency.py",),
    ),
    Mutant(
        "asked again after the first byte",
        "routing/dataplane/request_path.py",
        "            return await relay.stream(plane, flight, answer, request, headers)\n",
        "            reply = await relay.stream(plane, flight, answer, request, headers)\n"
        '            if flight.outcome == "incomplete":\n'
        '                await first_answer(plane, flight, engine_path=route.engine_path or "", trace_parents=[])\n'
        "            return reply\n",
        ("tests/routing/dataplane/test_streaming.py",),
    ),
    Mutant(
        "a replaced text is forgotten",
        "tenants/services/api_keys.py",
        "            former_texts.keep(key, former)\n",
        "            pass\n",
        FORMER_TEXTS,
    ),
    Mutant("a replaced text is taken again", "tenants/services/api_keys.py", "        former_texts.refuse(key)\n", "", FORMER_TEXTS),
    Mutant(
        "a replaced text is asked for among the tenant's own alone",
        "tenants/services/former_texts.py",
        "    if former is None:\n        raise Conflict(",
        "    if former is None:\n        return\n        raise Conflict(",
        FORMER_TEXTS,
    ),
    Mutant(
        "another tenant's address is told apart",
        "routing/services/replicas.py",
        """fetchone()[0]:
                raise AddressRefused(FOREIGN, field="url")""",
        """fetchone()[0]:
                raise Invalid("This address is taken.", field="url")""",
        ("tests/routing/api/test_replicas.py",),
    ),
    Mutant(
        "not yours is told apart from absent",
        "tenants/api/base.py",
        "        if slug is not None and tenant.slug != slug:\n            raise NotFound\n",
        "        if slug is not None and tenant.slug != slug:\n"
        '            raise NotFound if queries.tenant_id_of(slug) is None else Forbidden("Not yours.")\n',
        STRANGERS,
    ),
]

_STATES = [
    Mutant(
        "unproven replicas serve everybody",
        "routing/core/filters.py",
        '(mode == "audited" and entry.isolation == "isolated")',
        '(mode == "audited")',
        FILTERS,
    ),
    Mutant(
        "quarantined replicas serve",
        "routing/core/filters.py",
        '    if entry.isolation == "quarantined":\n        return False\n',
        "",
        FILTERS,
    ),
    Mutant(
        "engines without salts shared",
        "routing/core/filters.py",
        "if vouched and engine.salt_field is not None:",
        "if vouched:",
        FILTERS,
    ),
    Mutant(
        "dedicated replicas serve any namespace",
        "routing/core/filters.py",
        "return entry.dedicated_namespace is not None and entry.dedicated_namespace == namespace_id",
        "return entry.dedicated_namespace is not None",
        FILTERS,
    ),
    Mutant(
        "a token's signature not checked",
        "namespaces/core/signed.py",
        "            Ed25519PublicKey.from_public_bytes(publish_public_key).verify(signature, self._purpose + payload)\n",
        "",
        SIGNED,
    ),
    Mutant(
        "a probe passes for an order, and a snapshot for either",
        "namespaces/core/signed.py",
        "self._purpose = purpose",
        'self._purpose = b""',
        SIGNED,
    ),
    Mutant(
        "a token never expires",
        "namespaces/core/signed.py",
        "if not now_s < held.exp <= now_s + MAX_LIFE_S:",
        "if False:",
        SIGNED,
    ),
]

_EVENTS = [
    Mutant(
        "an adapter's name in events taken for a salt",
        "routing/core/kv_events.py",
        "        keys.remove(lora_name)\n",
        "        pass\n",
        (f"{KV_EVENTS}::test_which_key_is_the_salt",),
    ),
    Mutant(
        "a prompt's continuation names a namespace",
        "routing/core/kv_events.py",
        "    if stored.parent is not None:\n        return None\n",
        "",
        (f"{KV_EVENTS}::test_which_key_is_the_salt",),
    ),
    Mutant(
        "events found without their namespace",
        "routing/core/event_index.py",
        "        segment = group.segments.get(ns_key)\n        held, gpu",
        "        segment = next(iter(group.segments.values()), None)\n        held, gpu",
        (f"{EVENT_LAWS}::test_the_same_events_under_the_own_salt_do",),
    ),
    Mutant(
        "events of several groups found without their namespace",
        "routing/core/event_index.py",
        "            segment = group.segments.get(ns_key)\n",
        "            segment = next(iter(group.segments.values()), None)\n",
        (f"{EVENT_INDEX}::test_one_group_is_matched_as_two_alike_are",),
    ),
    Mutant(
        "one hash for two namespaces' blocks believed",
        "routing/core/event_contents.py",
        "if known.parent != parent or known.segment != segment.number:",
        "if False:",
        (f"{EVENT_INDEX}::test_one_hash_for_two_blocks_fails_closed",),
    ),
    Mutant(
        "blocks of no namespace become somebody's",
        "routing/core/event_contents.py",
        'if group.ignored and group.ignored.get(hash_) == "foreign":',
        "if False:",
        (f"{EVENT_INDEX}::test_one_hash_for_two_blocks_fails_closed",),
    ),
    Mutant(
        "what a connector says of a slower tier gives somebody a block",
        "routing/core/event_contents.py",
        "        if tier or not (event.tokens or event.sparse):\n",
        "        if not (event.tokens or event.sparse):\n",
        (EVENT_INDEX, EVENT_LAWS),
    ),
    Mutant(
        "what leaves a slower tier is forgotten to be nobody's",
        "routing/core/event_holdings.py",
        "if hash_ in group.ignored and not tier:",
        "if hash_ in group.ignored:",
        (f"{EVENT_INDEX}::test_a_slower_tier_gives_nobody_a_block_that_the_engine_did_not_name",),
    ),
    Mutant(
        "an event is stored anew for every twin that it finds",
        "routing/core/event_contents.py",
        "        if not self._store_in(table, group, event):\n            self._store_in(table, group, event, again=True)\n",
        "        while not self._store_in(table, group, event):\n            pass\n",
        (f"{EVENT_INDEX}::test_an_event_whose_blocks_each_find_twins_is_stored_twice_at_most",),
    ),
    Mutant(
        "a windowed group holds whatever full attention holds",
        "routing/core/event_windows.py",
        "return block is not None and self._group.holds(block.hash)",
        "return block is not None",
        (BY_HASH,),
    ),
    Mutant(
        "the first block that a window keeps says whose the prompt is",
        "routing/core/kv_events.py",
        "    if stored.sparse:",
        "    if False:",
        (f"{BY_HASH}::test_the_first_that_is_kept_says_no_salt",),
    ),
    Mutant(
        "a report of reuse believed of a windowed group",
        "routing/core/event_hashed.py",
        "            hashes = () if event.continued else hashes[-group.window_blocks :]\n",
        "",
        (f"{BY_HASH}::test_a_report_of_reuse_is_not_believed_of_a_windowed_group",),
    ),
    Mutant(
        "a window that nothing names is exact for ever",
        "routing/core/event_hashed.py",
        "(group.by_hash and not group.goes_on and not _names(table, group))",
        "False",
        (f"{BY_HASH}::test_a_group_whose_blocks_nothing_names_makes_a_steady_state",),
    ),
    Mutant(
        "blocks that are known by hash alone have no bound",
        "routing/core/event_hashed.py",
        "        self.ignored += 1  # of the same bound: it takes as much\n",
        "",
        (f"{BY_HASH}::test_hashes_have_a_bound",),
    ),
    Mutant(
        "a report brings back what a window lost",
        "routing/core/event_contents.py",
        "        if group.window_blocks is not None and event.parent is None and not event.continued and ",
        "        if False and ",
        (f"{BY_HASH}::test_a_report_does_not_bring_back_what_a_window_lost",),
    ),
    Mutant(
        "another adapter's blocks under one salt",
        "routing/core/event_contents.py",
        "elif segment.adapter != adapter:",
        "elif False:",
        (f"{EVENT_INDEX}::test_a_salt_serves_one_adapter",),
    ),
    Mutant(
        "events of an earlier process believed",
        "routing/core/event_index.py",
        "if generation is not None and generation != table.generation:",
        "if False:",
        (f"{EVENT_INDEX}::test_batches_of_other_generations_and_of_targets_that_are_not_there_are_refused",),
    ),
    Mutant(
        "a prompt has as many digests as engines' blocks are small",
        "routing/dataplane/choose.py",
        "        left -= len(prompt.chain(block_tokens, left))\n",
        "        prompt.chain(block_tokens, left)\n",
        ("tests/routing/dataplane/test_choose.py",),
    ),
    Mutant(
        "a decision hashes all of a prompt for blocks that were just shown",
        "routing/dataplane/choice.py",
        "ids[: most * block_tokens]",
        "ids",
        ("tests/routing/dataplane/test_choose.py",),
    ),
    Mutant(
        "chains of small blocks made on the event loop",
        "routing/dataplane/choose.py",
        "    return max(len(call.prompt), digests * (OFF_LOOP_BYTES // LOOP_DIGESTS))\n",
        "    return len(call.prompt)\n",
        (f"{KV_UNKNOWN}::test_chains_of_small_blocks_are_made_off_the_event_loop",),
    ),
    Mutant(
        "what lies beyond a prompt's longest chain is taken for gone",
        "routing/dataplane/evidence.py",
        " or whole_tokens + size <= prompt.exact_tokens\n",
        "\n",
        (f"{KV_UNKNOWN}::test_beyond_the_longest_chain_of_a_prompt_history_decides",),
    ),
    Mutant(
        "a namespace that comes back is taken for known",
        "routing/core/event_index.py",
        'self.counters["claims"] if held.forgot else 0',
        "0",
        (EVENT_CLAIMS,),
    ),
    Mutant(
        "namespaces of an owner that forgot none are known in part",
        "routing/core/event_index.py",
        " if held.forgot else 0",
        "",
        (EVENT_CLAIMS,),
    ),
    Mutant(
        "an empty target does not end what is unknown of a namespace",
        "routing/core/event_holdings.py",
        '        table.empty_at = self.counters["claims"]\n',
        "",
        (EVENT_CLAIMS,),
    ),
    Mutant(
        "what is unknown of a namespace that came back is taken for gone",
        "routing/dataplane/evidence.py",
        "        standing = FORGOTTEN\n",
        "        pass\n",
        (f"{KV_UNKNOWN}::test_of_a_namespace_that_was_forgotten_and_comes_back_history_decides",),
    ),
    Mutant(
        "the bound of the event index counts no namespaces",
        "routing/core/event_holdings.py",
        "return self.blocks + SEGMENT_BLOCKS * len(self.segments)",
        "return self.blocks",
        (f"{EVENT_INDEX}::test_a_namespace_in_a_group_takes_as_much_as_some_blocks",),
    ),
    Mutant(
        "whoever has many namespaces takes from those with few",
        "routing/core/event_tables.py",
        "return self.blocks + SEGMENT_BLOCKS * self.segments",
        "return self.blocks",
        (f"{EVENT_INDEX}::test_whoever_spreads_blocks_over_namespaces_pays_for_that",),
    ),
    Mutant(
        "what one window cuts is not asked of the others again",
        "routing/core/event_windows.py",
        "        if tokens == asked:\n            return tokens\n",
        "        return tokens\n",
        (EVENT_WINDOWS,),
    ),
    Mutant(
        "a window reaches back from inside another group's block",
        "routing/core/event_windows.py",
        "            tokens -= tokens % unit\n",
        "",
        (EVENT_WINDOWS,),
    ),
    Mutant(
        "windows that cut one another are asked for ever",
        "routing/core/event_windows.py",
        "    for _ in range(MAX_ROUNDS):\n",
        "    while True:\n",
        (EVENT_WINDOWS,),
    ),
    Mutant(
        "an engine told as exact where no prompt comes whose tokens are known",
        "routing/dataplane/tokens.py",
        "            if here and None not in here:\n",
        "            if False:\n",
        ("tests/routing/dataplane/test_lacking_tokens.py::test_an_endpoint_without_files_makes_it_history_until_it_has_them",),
    ),
    Mutant(
        "one endpoint without files takes the events from the others",
        "routing/dataplane/tokens.py",
        "            if here and None not in here:\n",
        "            if here - {None}:\n",
        ("tests/routing/dataplane/test_lacking_tokens.py::test_one_tenants_tokens_are_enough_and_a_restart_changes_nothing",),
    ),
    Mutant(
        "token ids placed by history where no files are declared",
        "routing/dataplane/evidence.py",
        "plane.residency.of if exact else plane.residency.told",
        "plane.residency.told",
        ("tests/routing/dataplane/test_lacking_tokens.py::test_token_ids_are_placed_by_events_all_the_same_and_text_is_told_as_history",),
    ),
    Mutant(
        "samples that have no tokens here are passed over",
        "routing/dataplane/parity.py",
        "            unknown = unknown or (name, ours.reason)\n",
        "",
        ("tests/routing/dataplane/test_parity.py::test_samples_that_have_no_tokens_here_are_no_agreement",),
    ),
    Mutant(
        "an answer believed although the engine removed what it showed",
        "routing/dataplane/evidence.py",
        "max_age_s = min(EVENT_LAG_S, now_s - shown.removed_s)",
        "max_age_s = EVENT_LAG_S",
        ("tests/routing/dataplane/feeds/test_kv.py::test_an_answer_counts_no_longer_than_until_the_engine_removes_what_it_showed",),
    ),
    Mutant(
        "a tenant pushed below its share of the event index",
        "routing/core/event_holdings.py",
        "payer = max(active, key=lambda owner: owner.weight)",
        "payer = active[0]",
        (f"{EVENT_LAWS}::test_nobody_is_pushed_below_an_equal_share",),
    ),
]

_TOKENS = [
    Mutant(
        "an artifact believed without its hash",
        "routing/core/artifact.py",
        "    if hashlib.sha256(content).digest() != digest:\n",
        "    if False:\n",
        ("tests/routing/core/test_artifact.py",),
    ),
    Mutant(
        "tokens warm for other namespaces of a tenant",
        "routing/dataplane/tokens.py",
        "ns_key=namespace.key",
        "ns_key=bytes(16)",
        (f"{TOKENS}::test_the_first_prompt_of_another_namespace_finds_nothing_warm",),
    ),
    Mutant(
        "an artifact that a tenant names removed for all",
        "routing/services/artifact_delivery.py",
        "  if string.find(named, ARGV[1], 1, true) then return 0 end\n",
        "",
        ("tests/routing/services/test_artifact_delivery.py",),
    ),
    Mutant(
        "one tenant's hanging artifact in the way of others'",
        "routing/dataplane/feeds/artifacts.py",
        "next((tenant for tenant in held.tenants if tenant not in busy), None)",
        "next((tenant for tenant in held.tenants[:1] if tenant not in busy), None)",
        ("tests/routing/dataplane/test_artifacts.py::test_a_tenant_whose_artifacts_never_compile_delays_nobody",),
    ),
]

_PROMPTS = [
    Mutant(
        "segments shared by namespaces",
        "routing/prompts/segments.py",
        "    return ns_key, tokenizer_digest,",
        '    return b"", tokenizer_digest,',
        (f"{SEGMENTS}::test_a_namespace_sees_only_what_it_put_in",),
    ),
    Mutant(
        "a newcomer's segments in the place of another tenant's",
        "routing/prompts/segments.py",
        "            return None\n        held = self._owners[owner] = _Owner()",
        "            del self._owners[next(iter(self._owners))]\n        held = self._owners[owner] = _Owner()",
        (f"{SEGMENTS}::test_newcomers_take_the_place_of_the_idle_alone",),
    ),
    Mutant(
        "a worker with the router's environment",
        "routing/prompts/pool.py",
        'env={"TOKENIZERS_PARALLELISM": "false"}',
        "env=None",
        (f"{SANDBOX}::test_a_worker_holds_nothing",),
    ),
    Mutant(
        "a worker for every tenant",
        "routing/prompts/pool.py",
        "own = next((handle for handle in idle if handle.owner == owner), None)",
        "own = next(iter(idle), None)",
        (f"{SANDBOX}::test_a_worker_serves_one_tenant_and_gives_way_to_another",),
    ),
    Mutant(
        "all workers for whoever hangs",
        "routing/prompts/pool.py",
        "if self._running[owner] >= self._limits.owner_workers:",
        "if False:",
        (f"{SANDBOX}::test_others_are_served_while_one_hangs",),
    ),
]

_TRANSFERS = [
    Mutant(
        "transfer from any host",
        "routing/core/transfer.py",
        '        (_host(handed.remote_host) in {_host(host) for host in hosts}, "host"),\n',
        "",
        TRANSFER,
    ),
    Mutant("transfer of another request", "routing/core/transfer.py", " and request_id in handed.remote_request_id", "", TRANSFER),
    Mutant(
        "transfer with forged hits",
        "routing/core/transfer.py",
        "0 <= handed.remote_prefill_cached_tokens <=",
        "0 <= 0 <=",
        TRANSFER,
    ),
    Mutant("transfer to who may not serve", "routing/core/pairs.py", "        and prefill.refusal is None\n", "", PAIRS),
    Mutant(
        "transfer part not held against isolation",
        "routing/core/filters.py",
        "    if not isolates(entry, engine, mode, namespace_id):\n",
        '    if part == "answer" and not isolates(entry, engine, mode, namespace_id):\n',
        (f"{PLANE_TRANSFERS}::test_who_may_not_serve_the_namespace_does_not_compute_its_prompts",),
    ),
    Mutant(
        "transfer goes on unread",
        "routing/dataplane/transfer.py",
        'params = wire.believe(said.transfer, hosts=hosts, request_id=headers["X-Request-Id"])',
        'params = __import__("msgspec").json.encode(said.transfer)',
        (f"{PLANE_TRANSFERS}::test_what_an_engine_forges_goes_nowhere",),
    ),
    Mutant(
        "transfer kept for the plain request",
        "routing/dataplane/dispatch.py",
        "transfer=handed.params)",
        'transfer=handed.params or (b"{}" if flight.transfer else None))',
        (f"{PLANE_TRANSFERS}::test_a_transfer_that_breaks_is_repeated_plainly_on_the_same_replica",),
    ),
    Mutant(
        "transfer's first call without our salt",
        "routing/dataplane/outgoing.py",
        "salt=namespace.salt",
        "salt=namespace.public_id if left_out else namespace.salt",
        (f"{PLANE_TRANSFERS}::test_on_every_route_both_calls_carry_our_salt_and_no_transfer_of_the_clients",),
    ),
    Mutant(
        "transfer's hits credited to the decode replica",
        "routing/dataplane/learn.py",
        "        _learn_transfer(flight, flight.transfer, call, usage.prompt_tokens)\n        return\n",
        "        _learn_transfer(flight, flight.transfer, call, usage.prompt_tokens)\n",
        (f"{PLANE_TRANSFERS}::test_hits_are_credited_to_the_replica_that_had_them",),
    ),
    Mutant(
        "transfer's prefill part never given back",
        "routing/dataplane/inflight.py",
        "        self.end_prefill()\n",
        "",
        (f"{PLANE_TRANSFERS}::test_a_client_that_leaves_while_the_prompt_is_computed_ends_that_and_nobody_else_is_called",),
    ),
]

_OVERLOAD = [
    Mutant(
        "a conversation of as many tool calls as a client likes is prepared",
        "routing/prompts/messages.py",
        '(message.get("content"), message.get("tool_calls")))',
        '(message.get("content"),))',
        (f"{PREPARE}::test_a_conversation_of_very_many_pieces_goes_without_tokens",),
    ),
    Mutant(
        "a conversation of as many values as a client likes is prepared",
        "routing/prompts/prepare.py",
        " or not within(body, max_characters)",
        "",
        (f"{PREPARE}::test_a_conversation_over_its_bound_goes_without_tokens",),
    ),
    Mutant(
        "values in arguments of tool calls count for nothing",
        "routing/prompts/prepare.py",
        "            if isinstance(arguments, str) and len(arguments) <= left:\n",
        "            if False:\n",
        (f"{PREPARE}::test_all_that_a_template_is_given_counts",),
    ),
    Mutant(
        "a long conversation prepared on the event loop",
        "routing/prompts/service.py",
        "prepared = await self._work(caller.owner, work, here=short)",
        "prepared = await self._work(caller.owner, work, here=True)",
        (f"{PROMPTS}::test_what_is_long_is_prepared_and_rendered_beside_the_event_loop",),
    ),
    Mutant(
        "a long conversation rendered on the event loop",
        "routing/prompts/service.py",
        "limits.text_characters), here=short)",
        "limits.text_characters), here=True)",
        (f"{PROMPTS}::test_what_is_long_is_prepared_and_rendered_beside_the_event_loop",),
    ),
    Mutant(
        "what an answer holds beside what is read is built",
        "routing/core/verdict.py",
        "        answer = _answer.decode(data)\n",
        "        answer = _answer.decode(data) if msgspec.json.decode(data) else None\n",
        (f"{VERDICT}::test_what_an_answer_holds_beside_what_is_read_is_not_built",),
    ),
    Mutant(
        "a member of an answer that is read has as many lists as an engine likes",
        "routing/core/verdict.py",
        'if size > MAX_MEMBER_SIGNS and data.count(b"[") + data.count(b"{") > MAX_MEMBER_SIGNS:',
        "if False:",
        (f"{VERDICT}::test_what_an_answer_holds_beside_what_is_read_is_not_built",),
    ),
    Mutant(
        "an answer that is no text goes to a client",
        "routing/core/verdict.py",
        "    if not _is_text(data):\n",
        "    if False:\n",
        (f"{VERDICT}::test_an_answer_whose_text_is_none_is_no_answer",),
    ),
    Mutant(
        "an answer of as many members as an engine likes is taken apart",
        "routing/dataplane/relay.py",
        "    if len(body) > MAX_MEMBERS_BYTES:\n",
        "    if False:\n",
        (f"{REQUEST_SHAPES}::test_a_long_answer_gets_the_clients_name_without_being_taken_apart",),
    ),
    Mutant(
        "what an engine's page holds beside what is looked for is built",
        "routing/core/build.py",
        "        return decoder.decode(body)\n",
        "        return decoder.decode(body) if msgspec.json.decode(body) else None\n",
        (f"{BUILD}::test_a_page_of_little_lists_is_read_without_building_them",),
    ),
    Mutant(
        "a list of as many models as an engine likes",
        "routing/core/build.py",
        'if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_SIGNS:',
        "if False:",
        (f"{BUILD}::test_a_page_of_little_lists_is_read_without_building_them",),
    ),
    Mutant(
        "a pool that is spilled to judged by the isolation of another",
        "routing/dataplane/view.py",
        "replace(home, pool=spill, replicas=opened[spill.id])",
        "replace(home, pool=__import__('msgspec').structs.replace(spill, isolation='declared'), replicas=opened[spill.id])",
        ("tests/routing/dataplane/test_spill.py",),
    ),
    Mutant(
        "another model for a key that may not use it",
        "routing/dataplane/request_path.py",
        "await prepare(plane, flight, find_endpoint(caller, named), headers)",
        "await prepare(plane, flight, caller.grant.tenant.endpoints[named], headers)",
        ("tests/routing/dataplane/test_spill.py",),
    ),
    Mutant(
        "webhooks follow redirects",
        "routing/outbound/webhooks.py",
        "allow_redirects=False",
        "allow_redirects=True",
        ("tests/routing/outbound/test_webhooks.py",),
    ),
    Mutant(
        "webhooks to another tenant's engine",
        "routing/services/webhooks.py",
        "                return True\n",
        "                return False\n",
        ("tests/routing/services/test_webhooks.py",),
    ),
]

_CAPTURES = [
    Mutant(
        "capture's key without its seed",
        "namespaces/core/captures.py",
        '["trace-capture", capture_id.bytes, seed]',
        '["trace-capture", capture_id.bytes]',
        (f"{CAPTURE}::test_the_capture_s_key_needs_both_halves",),
    ),
    Mutant(
        "capture's block ids without its key",
        "routing/core/capture.py",
        'state = hmac.digest(key, state + piece + (b"" if len(piece) == size else _CUT), _DIGEST)',
        'state = hmac.digest(b"", state + piece + (b"" if len(piece) == size else _CUT), _DIGEST)',
        (f"{CAPTURE}::test_another_key_gives_other_ids_everywhere",),
    ),
    Mutant(
        "captured blocks that do not stand for their prefix",
        "routing/core/capture.py",
        "state = hmac.digest(key, state + piece",
        "state = hmac.digest(key, start + piece",
        (f"{CAPTURE}::test_equal_ids_are_equal_prefixes",),
    ),
    Mutant(
        "captures in place of decision records",
        "routing/core/capture.py",
        'return hmac.digest(records_key, b"captures", _DIGEST)',
        "return records_key",
        ("tests/routing/services/test_capture_ingest.py::test_a_decision_record_does_not_pass_for_a_captured_request_nor_the_other_way",),
    ),
    Mutant(
        "captures by request and not by conversation",
        "routing/dataplane/captures.py",
        "if not capture.sampled(running.key, conversation, running.entry.share):",
        "if not capture.sampled(running.key, flight.decision_id.bytes, running.entry.share):",
        (f"{PLANE_CAPTURES}::test_a_share_takes_whole_conversations",),
    ),
    Mutant(
        "captures beyond their time",
        "routing/dataplane/captures.py",
        "        if time.time() >= running.entry.until:\n            return\n",
        "",
        (f"{PLANE_CAPTURES}::test_it_ends_by_the_clock_and_with_the_next_configuration",),
    ),
    Mutant(
        "captures of audits' probes",
        "routing/dataplane/captures.py",
        "running is None or flight.probe is not None or",
        "running is None or",
        (f"{PLANE_CAPTURES}::test_an_audit_s_probe_is_not_the_tenant_s_traffic",),
    ),
    Mutant(
        "captured conversations of two keys as one",
        "routing/dataplane/captures.py",
        "whose = flight.caller.grant.key.id.bytes",
        'whose = b""',
        (f"{PLANE_CAPTURES}::test_turns_share_their_prefix_their_session_and_their_scope",),
    ),
    Mutant(
        "deleted captures read",
        "routing/services/capture_read.py",
        " AND c.deleted_at IS NULL",
        "",
        (f"{CAPTURES}::test_many_rows_go_in_steps_and_are_read_no_more",),
    ),
    Mutant(
        "captures read with the ids that were stored",
        "routing/services/capture_read.py",
        "return numbered(Trace(name, capture.BLOCK_TOKENS, True, _requests(window)))",
        "return Trace(name, capture.BLOCK_TOKENS, True, _requests(window))",
        (f"{CAPTURES}::test_what_was_captured_is_read_by_time_with_ids_numbered_anew",),
    ),
    Mutant(
        "captures published beyond their time",
        "routing/services/captures.py",
        "ended_at=None, deleted_at=None, ends_at__gt=now)",
        "ended_at=None, deleted_at=None)",
        (f"{CAPTURES}::test_it_ends_by_itself",),
    ),
    Mutant(
        "captured requests of every tenant for anybody",
        "routing/migrations/0015_trace_captures.py",
        'rls.tenant_rows("routing_capturedrequest", app="SELECT, DELETE", ingest=True),',
        'migrations.RunSQL("GRANT SELECT, DELETE ON routing_capturedrequest TO saltroute_app"),',
        ROW_SECURITY,
    ),
]

_PEOPLE = [
    Mutant(
        "codes of a second factor taken again",
        "tenants/core/second_factor.py",
        "fresh = last_step is None or step > last_step",
        "fresh = True",
        (f"{SECOND_FACTOR}::test_a_step_is_taken_once_and_none_before_it",),
    ),
    Mutant(
        "recovery codes of one person open for another",
        "tenants/core/second_factor.py",
        "hashlib.sha256(_LABEL + user_id.bytes + text.encode())",
        "hashlib.sha256(_LABEL + text.encode())",
        (f"{SECOND_FACTOR}::test_a_recovery_code_is_read_as_people_type_it_and_belongs_to_one_person",),
    ),
    Mutant(
        "recovery codes good for ever",
        "tenants/services/second_factors.py",
        "digest=digest, used_at=None)",
        "digest=digest)",
        (f"{SECOND_FACTORS}::test_a_recovery_code_is_taken_once_and_new_ones_void_the_old",),
    ),
    Mutant(
        "a password alone signs in",
        "console/views/sign_in.py",
        "    if user.second_factor_at is None:\n        return enter",
        "    if user.is_active:\n        return enter",
        (f"{SIGN_IN_CODE}::test_a_password_alone_opens_nothing",),
    ),
    Mutant(
        "codes guessed without a count",
        "console/throttle.py",
        "CODE_ATTEMPTS = 5",
        "CODE_ATTEMPTS = 500",
        (f"{SIGN_IN_CODE}::test_guessing_codes_is_throttled_and_neither_header_nor_password_helps",),
    ),
    Mutant(
        "sessions idle for ever",
        "tenants/sessions.py",
        "        last_seen_at__gt=now - timedelta(seconds=settings.SESSION_IDLE_S),\n    )",
        "    )",
        ("tests/tenants/test_sessions.py::test_a_session_ends_when_it_is_idle",),
    ),
    Mutant(
        "keys of sessions in clear",
        "tenants/sessions.py",
        'return hashlib.sha256((session_key or "").encode()).hexdigest()',
        'return str(hashlib and (session_key or ""))',
        ("tests/tenants/test_sessions.py::test_the_key_in_the_cookie_is_not_in_the_table",),
    ),
    Mutant(
        "an invitation taken by another address",
        "tenants/services/invitations.py",
        "if user.email != row.email or not user.is_active:",
        "if not user.is_active:",
        (f"{INVITATIONS}::test_an_account_joins_with_its_own_address_alone",),
    ),
    Mutant(
        "the link of an invitation for every inviter",
        "tenants/services/invitations.py",
        "mail.invitation_link(token) if show_link else None)",
        "mail.invitation_link(token))",
        (f"{INVITATIONS}::test_only_who_may_see_it_is_given_the_link",),
    ),
    Mutant(
        "changes recorded whatever the role",
        "tenants/changes.py",
        "if actor.permissions is not None and actions.needed(action) not in actor.permissions:",
        "if actor.permissions == frozenset({action}):",
        ("tests/contracts/test_roles.py::test_services_refuse_a_viewer_although_the_view_did_not_ask",),
    ),
    Mutant(
        "a required second factor asked of nobody",
        "tenants/services/second_factors.py",
        "return user.second_factor_at is None and required_of(user, [seat])",
        "return user.second_factor_at is None and required_of(user, [])",
        (f"{SIGN_IN_CODE}::test_who_has_none_is_led_to_enrol_where_it_is_required",),
    ),
    Mutant(
        "whoever adds an address watches its person sign in",
        "tenants/services/sign_ins.py",
        ", user=user, entered_at__isnull=False).exists()",
        ", user=user).exists()",
        (f"{SIGN_INS}::test_a_success_is_in_each_tenant_that_the_person_has_been_in",),
    ),
    Mutant(
        "every unknown address is a row of its own",
        "tenants/services/sign_ins.py",
        "_counted(subject or NOBODY,",
        "_counted(subject or __import__('uuid').uuid4(),",
        (f"{SIGN_INS}::test_unknown_addresses_fill_nothing_and_none_is_kept",),
    ),
    Mutant(
        "an owner who cannot sign in is left alone",
        "tenants/services/members.py",
        "others.filter(user__is_active=True).exclude(",
        "others.exclude(",
        ("tests/tenants/api/test_members.py::test_an_owner_who_cannot_sign_in_does_not_count_as_one",),
    ),
    Mutant(
        "anybody's upload is received",
        "tenants/api/base.py",
        'and self.may(self.permissions[request.method or ""]):',
        ":",
        ("tests/routing/api/test_uploads.py::test_what_nobody_may_send_is_not_received",),
    ),
]

_QUOTAS = [
    Mutant(
        "quota: slices without a bound",
        "routing/core/quota.py",
        "return self.limit if self.routers <= 1 else max(1, math.ceil(self.limit / (slices * self.routers)))",
        "return self.limit",
        (f"{QUOTA}::test_who_has_not_heard_for_long_uses_a_slice_at_most",),
    ),
    Mutant(
        "quota: what others used not counted",
        "routing/core/quota.py",
        "return terms.limit - _within(self.others, now_s) - _within(self.said, now_s)",
        "return terms.limit - _within(self.said, now_s)",
        (f"{QUOTA}::test_what_others_used_is_gone_here_too",),
    ),
    Mutant(
        "quota: a window that is too short",
        "routing/core/quota.py",
        "return float((slot + 1) * SLOT_S + WINDOW_S + MARGIN_S)",
        "return float(slot * SLOT_S + WINDOW_S - 10)",
        (f"{QUOTA}::test_a_router_alone_passes_no_limit",),
    ),
    Mutant(
        "quota: reservations that are never given back",
        "routing/core/quota.py",
        "            self.own[stamp] -= reserved - used",
        "            pass",
        (f"{QUOTA}::test_settling_conserves_within_a_minute",),
    ),
    Mutant(
        "quota: what was used beyond a reservation is free",
        "routing/core/quota.py",
        "        self.settled += used",
        "        self.settled += min(reserved, used)",
        (f"{QUOTA}::test_settling_conserves",),
    ),
    Mutant(
        "quota: a report whose answer was lost taken for heard",
        "routing/core/quota.py",
        "        if self.unsure or _old(self, now_s) or (self.settled",
        "        if _old(self, now_s) or (self.settled",
        (f"{QUOTA}::test_what_nobody_knows_to_be_heard_is_said_again",),
    ),
    Mutant(
        "quota: no limit without Valkey",
        "routing/core/quota.py",
        "    return terms.lost and amount <= share",
        "    return terms.lost",
        (f"{QUOTA}::test_without_valkey_each_goes_by_its_share",),
    ),
    Mutant(
        "quota: another share each time that Valkey is lost",
        "routing/core/quota.py",
        "return max(1, terms.limit // terms.routers) - _within(self.own, now_s)",
        "return max(1, terms.limit // terms.routers) - self._hidden(now_s)",
        (f"{QUOTA}::test_who_is_cut_off_adds_its_share_at_most",),
    ),
    Mutant(
        "quota: what others used is forgotten with Valkey",
        "routing/core/quota.py",
        "share = min(self._share(now_s, terms), left - hidden) if terms.lost else 0",
        "share = self._share(now_s, terms) if terms.lost else 0",
        (f"{QUOTA}::test_what_others_were_heard_to_use_is_used_without_valkey_too",),
    ),
    Mutant(
        "quota: the nearest alone",
        "routing/dataplane/quotas.py",
        "return [entry for one in asked if (entry",
        "return [entry for one in asked[-1:] if (entry",
        (f"{PLANE_QUOTAS}::test_all_that_apply_must_hold",),
    ),
    Mutant(
        "quota: prompts of those who hang up are free",
        "routing/dataplane/quotas.py",
        "usage.prompt_tokens, usage.counted = prompt.tokens, True",
        "usage.counted = True",
        (f"{PLANE_QUOTAS}::test_leaving_before_the_usage_is_said_is_no_way_round_a_quota",),
    ),
    Mutant(
        "quota: everybody's",
        "routing/migrations/0017_quotas.py",
        'rls.tenant_rows("routing_quota"),',
        'migrations.RunSQL("GRANT SELECT, INSERT, UPDATE, DELETE ON routing_quota TO saltroute_app"),',
        ROW_SECURITY,
    ),
    Mutant(
        "quota: the platform's in the tenant's hands",
        "routing/services/quotas.py",
        'if of == "platform" and not platform:',
        'if of == "planet" and not platform:',
        (f"{QUOTAS}::test_the_platforms_own_quota_is_the_platforms",),
    ),
    Mutant(
        "quota: tokens taken back while records wait",
        "routing/services/quotas.py",
        "    if drift > 0 and waits:",
        "    if drift > 0 and drift < 0:",
        (f"{QUOTAS}::test_records_that_wait_take_nothing_back",),
    ),
    Mutant(
        "quota: audits counted as the tenant's use",
        "routing/services/record_store.py",
        "[one for one in records if not one.audit]",
        "list(records)",
        ("tests/routing/api/test_audit_marks.py::test_neither_usage_nor_rollups_hold_them",),
    ),
]

_COUNTED_ONCE = [
    Mutant(
        "records: a repeat counts again in sums",
        "routing/services/record_store.py",
        "all_new = insert(rows) == len(rows)",
        "all_new = insert(rows) <= len(rows)",
        ("tests/routing/services/test_records.py::test_a_record_is_added_up_once_however_often_it_comes",),
    ),
    Mutant(
        "records: acknowledged although PostgreSQL did not take them",
        "routing/services/records.py",
        "if entries and self._store(entries):",
        "if entries and self._store(entries) is not None:",
        ("tests/routing/services/test_records.py::test_a_stop_while_postgresql_is_away_leaves_the_batch_pending",),
    ),
    Mutant(
        "records: what Valkey did not take leaves the router's queue",
        "routing/dataplane/outlet.py",
        """            log.warning("records wait: %s", type(error).__name__)
            return False""",
        """            log.warning("records wait: %s", type(error).__name__)""",
        ("tests/routing/dataplane/test_telemetry.py::test_what_could_not_be_sent_is_sent_later_once_and_in_order",),
    ),
    Mutant(
        "records: a dropped one takes no number",
        "routing/dataplane/telemetry.py",
        """        if not self.room(tenant_id):
            self._dropped.inc()
            return""",
        """        if not self.room(tenant_id):
            self._dropped.inc()
            self._serial -= 1
            return""",
        ("tests/routing/dataplane/test_telemetry.py::test_every_record_takes_a_number_dropped_ones_too",),
    ),
]

_MEASURES = [
    Mutant(
        "coarser sums tell others' load apart",
        "routing/core/cause_sum.py",
        "folds = fold and not one.own_pool",
        "folds = False",
        ("tests/routing/api/test_causes.py::test_coarser_sums_fold_what_no_read_could_fold_any_more",),
    ),
    Mutant(
        "every pool passes for the tenant's own",
        "routing/dataplane/causes.py",
        "return all(pool.owner_tenant_id == flight.caller.grant.tenant.snapshot.tenant_id for pool in pools)",
        "return bool(pools)",
        ("tests/routing/dataplane/test_causes.py::test_a_pool_of_somebody_else_is_not_passed_for_an_own_one",),
    ),
    Mutant(
        "an engine that only others have still counts as another pool of the tenant's",
        "routing/dataplane/causes.py",
        'return "apart" if any(replica.url == compared.target for other in others for replica in other.reaches) else "lost"',
        'return "apart" if others else "lost"',
        ("tests/routing/dataplane/test_causes.py::test_what_went_to_another_pool_is_no_lost_replica",),
    ),
    Mutant(
        "what a platform's replica did is told to each tenant",
        "routing/dataplane/replica_states.py",
        "yield pool.owner_tenant_id, entry.id, entry.url",
        "yield tenant.snapshot.tenant_id, entry.id, entry.url",
        ("tests/routing/dataplane/test_replica_states.py::test_each_replica_is_told_once_for_the_owner_of_its_pool",),
    ),
    Mutant(
        "a state's MAC is a record's",
        "routing/core/replica_state.py",
        '_DOMAIN + data, "sha256")',
        'data, "sha256")',
        ("tests/routing/core/test_replica_state.py::test_a_state_comes_back_and_its_mac_is_of_no_record",),
    ),
    Mutant(
        "requests are counted once for each grain",
        "routing/services/rollups.py",
        'where = "tenant_id = %s AND grain = %s AND start_at >= %s AND start_at < %s"',
        'where = "tenant_id = %s AND grain >= %s AND start_at >= %s AND start_at < %s"',
        ("tests/routing/services/test_rollups.py::test_every_grain_adds_up_to_the_same",),
    ),
    Mutant(
        "an empty text is no item",
        "routing/services/record_store.py",
        'return _SEPARATOR.join(["", *(',
        "return _SEPARATOR.join([*(",
        ("tests/routing/services/test_record_store.py::test_any_text_goes_into_its_own_column_and_row",),
    ),
]


_TRACES = [
    Mutant(
        "a review that is surer than its conversations let it be",
        "routing/traces/review.py",
        "found[place] = self.of(of_runs, of_groups[group])",
        "found[place] = self.of(of_runs, draw.multinomial(len(group), np.full(len(group), 1 / len(group))).astype(np.float64))",
        (f"{TRACES}/test_review.py::test_conversations_are_resampled_and_not_requests",),
    ),
    Mutant(
        "a review whose interval misses that nothing differs",
        "routing/traces/review.py",
        "    return Interval(value, float(low), float(high))",
        "    return Interval(value, float(low + high) / 2, float(high))",
        (f"{TRACES}/test_review.py::test_where_nothing_differs_the_interval_holds_zero",),
    ),
    Mutant(
        "a replay that shares between scopes",
        "routing/traces/stored.py",
        "if scope else one",
        "if False else one",
        (f"{TRACES}/test_stored.py::test_blocks_of_two_scopes_are_two",),
    ),
    Mutant(
        "a trace that is kept with its names",
        "routing/traces/stored.py",
        "blocks=tuple([block[number] for number in one.blocks]),",
        "blocks=one.blocks,",
        (f"{TRACES}/test_stored.py::test_nothing_of_a_name_is_kept",),
    ),
    Mutant(
        "a report with markup of others",
        "routing/traces/pages.py",
        "autoescape=True",
        "autoescape=False",
        (f"{TRACES}/test_work.py::test_a_page_is_whole_by_itself_and_holds_no_markup_of_others",),
    ),
    Mutant(
        "a reader of traces with our environment",
        "routing/services/traces/child.py",
        "            env=env,\n",
        "",
        (f"{TRACE_JOBS}/test_files.py::test_the_process_holds_nothing_of_ours",),
    ),
    Mutant(
        "a trace job written by who lost it",
        "routing/services/traces/running.py",
        "id=self.row.id, holder=self.holder, state=",
        "id=self.row.id, state=",
        (f"{TRACE_JOBS}/test_jobs.py::test_who_lost_the_lease_to_one_that_still_works_leaves_it_alone",),
    ),
    Mutant(
        "a trace job begun twice",
        "routing/services/traces/running.py",
        " or (row.lease_until is not None and row.lease_until > now):",
        ":",
        (f"{TRACE_JOBS}/test_jobs.py::test_a_job_whose_worker_died_goes_on_from_its_checkpoint",),
    ),
]

_SCHEDULING = [
    Mutant(
        "pressure charged for what nobody asks for again",
        "routing/core/scorers/pressure.py",
        " * replica.reuse_share",
        "",
        ("tests/routing/core/test_twelve.py::test_pressure_is_charged_at_what_the_cache_is_worth",),
    ),
    Mutant(
        "near-ties of half a second",
        "routing/core/policy.py",
        "min(self.tie_share * best_s, MOST_TIE_S)",
        "self.tie_share * best_s",
        ("tests/routing/core/test_twelve.py::test_a_near_tie_is_never_worth_more_than_some_milliseconds",),
    ),
    Mutant("followers held that would join", "routing/core/gate.py", "if joins or len(", "if len(", ("tests/routing/core/test_gate.py",)),
    Mutant("followers held in vain", "routing/core/gate.py", "if state.due_s - now_s > hold_s:", "if False:", ("tests/routing/core/test_gate.py",)),
    Mutant(
        "turns by the time for waiting alone",
        "routing/dataplane/waiting.py",
        "return latest_s if slo_s is None else min(latest_s, flight.started_s + slo_s)",
        "return latest_s",
        ("tests/routing/dataplane/test_waiting.py::test_who_is_due_first_goes_first",),
    ),
    Mutant(
        "an objective that waiting does not shorten, in replays",
        "routing/traces/router.py",
        "max(0.0, self.ttft_slo_s - waited_s)",
        "self.ttft_slo_s",
        ("tests/routing/traces/test_replay.py::test_what_a_request_waited_is_gone_from_its_objective",),
    ),
    Mutant(
        "an objective that waiting does not shorten",
        "routing/dataplane/choose.py",
        "return max(0.0, endpoint.slo.ttft_s - max(0.0, now_s - flight.started_s))",
        "return endpoint.slo.ttft_s",
        (
            f"{OBJECTIVE}::test_what_a_failed_attempt_took_is_gone_from_the_objective_of_the_next",
            f"{OBJECTIVE}::test_what_a_request_waited_in_line_is_gone_from_its_objective",
        ),
    ),
    Mutant(
        "an objective that nobody has set",
        "routing/dataplane/choose.py",
        "    if endpoint.slo is None or endpoint.slo.ttft_s is None:\n        return None\n",
        "    if endpoint.slo is None or endpoint.slo.ttft_s is None:\n        return 100.0\n",
        (f"{OBJECTIVE}::test_without_an_objective_for_the_first_token_nothing_is_guarded_and_nothing_missed",),
    ),
    Mutant(
        "a speed learned at the first byte and again at the end",
        "routing/dataplane/learn.py",
        "        attempt.speed_learned = True\n",
        "",
        (f"{FIRST_BYTE}::test_the_speed_is_learned_at_the_first_byte_and_once",),
    ),
    Mutant(
        "a guess of what was cached taken for knowledge at the first byte",
        "routing/dataplane/learn.py",
        "flight.transfer is not None or not prediction.exact:",
        "flight.transfer is not None:",
        (f"{FIRST_BYTE}::test_where_it_is_not_known_exactly_the_answers_own_word_is_waited_for",),
    ),
    Mutant(
        "what was cached counted as computed at the first byte",
        "routing/dataplane/learn.py",
        "float(flight.prompt.tokens - chosen.matched_tokens)",
        "float(flight.prompt.tokens)",
        (f"{FIRST_BYTE}::test_work_is_what_stood_ahead_and_what_events_do_not_show",),
    ),
    Mutant(
        "the load of an adapter taken for slowness",
        "routing/dataplane/learn.py",
        ' and not prediction.first_use and chosen.slot != "loading":',
        ":",
        (f"{FIRST_BYTE}::test_loading_an_adapter_is_no_slowness",),
    ),
    Mutant(
        "audits teach the speed of an engine",
        "routing/dataplane/learn.py",
        "flight.prompt is None or flight.probe is not None or flight.transfer",
        "flight.prompt is None or flight.transfer",
        (f"{FIRST_BYTE}::test_audits_teach_nothing",),
    ),
    Mutant(
        "a first quick answer makes a replica slow anew",
        "routing/core/calibration.py",
        "        if self.own_rate is None or not (slow or fast):  # what",
        "        if True:  # what",
        ("tests/routing/core/test_calibration.py::test_an_answer_after_a_silence_renews_what_it_confirms_and_not_what_it_contradicts",),
    ),
    Mutant(
        "any status of an engine's a label of its own",
        "routing/dataplane/metrics.py",
        "    if status == code or status in STATUSES:",
        "    if True:",
        ("tests/routing/dataplane/test_metric_labels.py::test_no_value_of_a_strangers_makes_a_series",),
    ),
]

_DOOR_CHECKS = "tests/routing/dataplane/test_checks.py"
_CHECKED = "tests/routing/services/audits/test_replica_checks.py::test_a_strangers_engine_is_one_that_does_not_answer"

_REPLICA_CHECKS = [
    Mutant(
        "an order of a replica test that nobody signed",
        "namespaces/core/signed.py",
        "            Ed25519PublicKey.from_public_bytes(publish_public_key).verify(signature, self._purpose + payload)\n",
        "",
        (f"{_DOOR_CHECKS}::test_only_the_control_plane_orders_a_check_and_each_order_once",),
    ),
    Mutant(
        "a replica test under one salt",
        "routing/dataplane/checks.py",
        "for salt in (one, one, other):",
        "for salt in (one, one, one):",
        (f"{_DOOR_CHECKS}::test_salts_are_judged_by_three_uses_of_one_prompt",),
    ),
    Mutant(
        "a replica test that meets another cache with each probe",
        "routing/dataplane/checks.py",
        "        headers[replica.engine.rank_header] = rank\n",
        "        pass\n",
        (f"{_DOOR_CHECKS}::test_all_probes_of_one_check_meet_one_rank",),
    ),
    Mutant(
        "a replica test that tells a service from nothing",
        "routing/dataplane/checks.py",
        "if status != 200 or not listed.served:",
        "if status == 0:",
        (f"{_DOOR_CHECKS}::test_what_is_no_engine_is_told_from_nothing_by_nobody",),
    ),
    Mutant(
        "a replica test of a stranger's engine",
        "routing/services/replica_checks.py",
        "found = _asked(row, settings.PUBLISH_KEY) if usable else UNANSWERED",
        "found = _asked(row, settings.PUBLISH_KEY)",
        (_CHECKED,),
    ),
    Mutant(
        "a replica test that tells by its time",
        "routing/services/replica_checks.py",
        "shown_at = timezone.now() if found.answered else now + timedelta(seconds=NO_ANSWER_S)",
        "shown_at = timezone.now()",
        (_CHECKED,),
    ),
]

_PLAYGROUND = (
    Mutant(
        "one tenant holds all places of the playground",
        "routing/services/playground/places.py",
        "return max(1, self.limit - 1)",
        "return self.limit",
        (f"{PLAYGROUND}::test_places_are_bounded_for_each_tenant_and_in_all_and_come_back",),
    ),
    Mutant(
        "who is turned away from the playground is in no audit log",
        "console/views/playground.py",
        "if isinstance(refusal, Busy):",
        "if False:",
        (f"{PLAYGROUND}::test_places_are_bounded_for_each_tenant_and_in_all_and_come_back",),
    ),
    Mutant(
        "a policy that is written for a trial moves who uses its name",
        "routing/services/policies.py",
        "policy_id=known.id, kind=kind, spec=spec, activate=False)",
        "policy_id=known.id, kind=kind, spec=spec, activate=True)",
        ("tests/console/views/test_trial_writing.py::test_it_is_tried_as_the_next_version_of_what_runs",),
    ),
    Mutant(
        "a place that never comes back",
        "console/views/playground.py",
        "            close()\n        self._place.back()",
        "            close()",
        (f"{PLAYGROUND}::test_places_are_bounded_for_each_tenant_and_in_all_and_come_back",),
    ),
    Mutant(
        "the playground asks by the path where any tenant's key opens",
        "routing/services/playground/talk.py",
        "/t/{quote(slug, safe='')}/v1/chat/completions",
        "/v1/chat/completions",
        (f"{PLAYGROUND}::test_a_chat_is_sent_as_the_tenants_client_and_comes_back_in_pieces",),
    ),
    Mutant(
        "keys for the playground never end",
        "routing/services/playground/passing_keys.py",
        "expires_at=now + KEY_LIFE",
        "expires_at=None",
        (f"{PLAYGROUND}::test_a_key_for_a_quarter_of_an_hour_one_at_a_time",),
    ),
    Mutant(
        "keys for the playground pile up",
        "routing/services/playground/passing_keys.py",
        "if before is not None:",
        "if False:",
        (f"{PLAYGROUND}::test_a_key_for_a_quarter_of_an_hour_one_at_a_time",),
    ),
    Mutant(
        "the playground's prompts without a bound",
        "routing/services/playground/asked.py",
        " > MAX_PROMPT_BYTES:",
        " > MAX_PROMPT_BYTES * 100:",
        (f"{PLAYGROUND}::test_what_is_not_acceptable_is_named_and_never_sent",),
    ),
)
_RANKS = [
    Mutant(
        "an audit's probes spread over ranks",
        "routing/dataplane/picture.py",
        "best = scheduler.best_rank(self._ask, ranks, policy) if pinned is None else ranks[pinned % len(ranks)]",
        "best = scheduler.best_rank(self._ask, ranks, policy)",
        (f"{PLANE_RANKS}::test_all_probes_of_one_audit_meet_one_rank_and_other_audits_others",),
    ),
    Mutant(
        "history of ranks looked up as the engine's",
        "routing/dataplane/evidence.py",
        "        place = url if rank is None else rank.key\n",
        "        place = url\n",
        (f"{PLANE_RANKS}::test_history_is_kept_by_rank_where_there_are_no_events",),
    ),
    Mutant(
        "events of ranks looked up as the first's",
        "routing/dataplane/evidence.py",
        "None if rank is None else rank.number",
        "None if rank is None else 0",
        (f"{PLANE_RANKS}::test_the_next_turn_goes_to_the_rank_that_holds_the_conversation",),
    ),
    Mutant(
        "the chosen rank not named",
        "routing/dataplane/dispatch.py",
        ", rank=choice.rank",
        "",
        (f"{PLANE_RANKS}::test_the_next_turn_goes_to_the_rank_that_holds_the_conversation",),
    ),
    Mutant(
        "ranks of a part of a deployment named by their numbers in the whole",
        "routing/core/ranks.py",
        "numbers != list(range(count)) or ",
        "",
        (f"{RANKS}::test_ranks_are_named_only_where_their_numbers_mean_one_thing",),
    ),
    Mutant(
        "a rank's request never given back to its engine",
        "routing/dataplane/ranks.py",
        "        self.engine.give_back(answers)\n",
        "",
        (f"{PLANE_RANKS}::test_a_prefix_that_everybody_sends_does_not_fill_one_rank",),
    ),
    Mutant(
        "a hit at another rank than the named one raises an alarm",
        "routing/core/residency.py",
        "return None if not found or None in found else max(one for one in found if one is not None)",
        "return None if not found or None in found else min(one for one in found if one is not None)",
        (f"{RANKS}::test_what_was_sent_to_any_rank_explains_a_hit",),
    ),
    Mutant(
        "ranks of the platform's replicas shown to tenants",
        "routing/services/disclosure.py",
        "            if one.refusal != OTHER_RANK or own(one.replica_id)  # what a shared replica is made of is the platform's\n",
        "",
        ("tests/routing/services/test_disclosure.py::test_ranks_are_shown_of_own_replicas_alone",),
    ),
]

MUTANTS: tuple[Mutant, ...] = (
    *_IDENTITY,
    *_KEYS,
    *_SUBJECT,
    *_NAMES,
    *_DATABASE,
    *_STRIPPING,
    *_SNAPSHOTS,
    *_CALLERS,
    *_STATES,
    *_OUTWARD,
    *_EVENTS,
    *_TOKENS,
    *_PROMPTS,
    *_RECONCILIATION,
    *_OVERLOAD,
    *_TRANSFERS,
    *_TRACES,
    *_CAPTURES,
    *_PEOPLE,
    *_QUOTAS,
    *_COUNTED_ONCE,
    *_MEASURES,
    *_SCHEDULING,
    *_REPLICA_CHECKS,
    *_PLAYGROUND,
    *_RANKS,
)
