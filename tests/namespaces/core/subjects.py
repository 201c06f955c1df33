"""Hypothesis strategies for identity subjects, and every way to change exactly one input of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from hypothesis import strategies as st

from namespaces.core.subject import Adapter, Artifact, Model, ScopeLevel, Sharing, Subject

# A small alphabet makes boundary shifts and near collisions likely; the last two are one letter composed and decomposed.
texts = st.one_of(st.text("ab:/@\0", max_size=4), st.sampled_from(["", "\u00e9", "e\u0301", "null", "None"]), st.text(max_size=6))
encodable = texts.filter(lambda text: not any("\ud800" <= character <= "\udfff" for character in text))
uuids = st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number))
few_uuids = st.integers(0, 3).map(lambda number: UUID(int=number))  # few values, so that two subjects often agree on one
versions = st.integers(0, 2**40)

levels = st.builds(ScopeLevel, id=few_uuids, segment=encodable, version=versions)
models = st.builds(Model, name=encodable, revision=encodable, quantisation=st.none() | encodable, kv_dtype=st.none() | encodable)
artifacts = st.builds(Artifact, digest=st.none() | st.binary(max_size=4), revision=st.none() | encodable)
adapters = st.builds(Adapter, name=encodable, revision=encodable, generation=versions)
contexts = st.dictionaries(encodable, encodable, max_size=3).map(lambda versions_by_name: tuple(sorted(versions_by_name.items())))

subjects = st.builds(
    Subject,
    tenant_id=few_uuids,
    sharing=st.sampled_from(Sharing),
    scope=st.lists(levels, min_size=1, max_size=3).map(tuple),
    engine_family=encodable,
    model=models,
    tokenizer=artifacts,
    chat_template=artifacts,
    epoch=st.tuples(versions, versions),
    adapter=st.none() | adapters,
    context=contexts,
    multimodal_processor=st.none() | encodable,
    data_class=st.none() | encodable,
    key_id=few_uuids,
    request_nonce=st.binary(min_size=1, max_size=4),
    endpoint_id=st.none() | few_uuids,
    client_subdivision=st.none() | encodable,
)


def counted(subject: Subject) -> Subject:
    """The subject with everything set aside that, by the sharing level's meaning, must not count."""
    kept = replace(subject, context=tuple(sorted(subject.context)))
    if subject.sharing is Sharing.TENANT:
        kept = replace(kept, scope=kept.scope[:1])
    if subject.sharing in (Sharing.TENANT, Sharing.SCOPE):
        kept = replace(kept, key_id=None)
    if subject.sharing is not Sharing.NONE:
        kept = replace(kept, request_nonce=None)
    return kept


def _other(text: str | None) -> str:
    return "x" if text is None else text + "x"


def _deepest(subject: Subject, **changes: object) -> Subject:
    return replace(subject, scope=(*subject.scope[:-1], replace(subject.scope[-1], **changes)))  # type: ignore[arg-type]  # names are the test's


def _root(subject: Subject, **changes: object) -> Subject:
    return replace(subject, scope=(replace(subject.scope[0], **changes), *subject.scope[1:]))  # type: ignore[arg-type]  # names are the test's


def _next(number: UUID) -> UUID:
    return UUID(int=number.int + 1)


# Each counts at every sharing level.
ALWAYS: dict[str, Callable[[Subject], Subject]] = {
    "tenant": lambda s: replace(s, tenant_id=_next(s.tenant_id)),
    "root scope id": lambda s: _root(s, id=_next(s.scope[0].id)),
    "root scope version": lambda s: _root(s, version=s.scope[0].version + 1),
    "engine family": lambda s: replace(s, engine_family=_other(s.engine_family)),
    "model name": lambda s: replace(s, model=replace(s.model, name=_other(s.model.name))),
    "model revision": lambda s: replace(s, model=replace(s.model, revision=_other(s.model.revision))),
    "quantisation": lambda s: replace(s, model=replace(s.model, quantisation=_other(s.model.quantisation))),
    "kv dtype": lambda s: replace(s, model=replace(s.model, kv_dtype=_other(s.model.kv_dtype))),
    "tokenizer digest": lambda s: replace(s, tokenizer=replace(s.tokenizer, digest=(s.tokenizer.digest or b"") + b"x")),
    "tokenizer revision": lambda s: replace(s, tokenizer=replace(s.tokenizer, revision=_other(s.tokenizer.revision))),
    "template digest": lambda s: replace(s, chat_template=replace(s.chat_template, digest=(s.chat_template.digest or b"") + b"x")),
    "template revision": lambda s: replace(s, chat_template=replace(s.chat_template, revision=_other(s.chat_template.revision))),
    "adapter": lambda s: replace(s, adapter=None if s.adapter else Adapter("", "", 0)),
    "adapter name": lambda s: replace(s, adapter=replace(s.adapter, name=_other(s.adapter.name)) if s.adapter else Adapter("x", "", 0)),
    "adapter revision": lambda s: replace(s, adapter=replace(s.adapter, revision=_other(s.adapter.revision)) if s.adapter else Adapter("", "x", 0)),
    "adapter generation": lambda s: replace(s, adapter=replace(s.adapter, generation=s.adapter.generation + 1) if s.adapter else Adapter("", "", 1)),
    "context added": lambda s: replace(s, context=(*s.context, ("a name that no strategy draws", ""))),
    "context version": lambda s: replace(s, context=tuple((name, version + "x") for name, version in s.context) or (("", ""),)),
    "multimodal processor": lambda s: replace(s, multimodal_processor=_other(s.multimodal_processor)),
    "data class": lambda s: replace(s, data_class=_other(s.data_class)),
    "endpoint kept apart": lambda s: replace(s, endpoint_id=_next(s.endpoint_id) if s.endpoint_id else UUID(int=0)),
    "client subdivision": lambda s: replace(s, client_subdivision=_other(s.client_subdivision)),
    "tenant epoch": lambda s: replace(s, epoch=(s.epoch[0] + 1, s.epoch[1])),
    "endpoint epoch": lambda s: replace(s, epoch=(s.epoch[0], s.epoch[1] + 1)),
    "sharing": lambda s: replace(s, sharing=list(Sharing)[(list(Sharing).index(s.sharing) + 1) % len(Sharing)]),
}
# Each counts at the sharing levels named.
SOMETIMES: dict[str, tuple[frozenset[Sharing], Callable[[Subject], Subject]]] = {
    "acting scope id": (
        frozenset({Sharing.SCOPE, Sharing.KEY, Sharing.NONE}),
        lambda s: replace(s, scope=(*s.scope, ScopeLevel(UUID(int=99), "below", 1))),
    ),
    "acting scope version": (
        frozenset({Sharing.SCOPE, Sharing.KEY, Sharing.NONE}),
        lambda s: _deepest(s, version=s.scope[-1].version + 1),
    ),
    "key": (frozenset({Sharing.KEY, Sharing.NONE}), lambda s: replace(s, key_id=_next(s.key_id) if s.key_id else None)),
    "request nonce": (frozenset({Sharing.NONE}), lambda s: replace(s, request_nonce=(s.request_nonce or b"") + b"x")),
}
