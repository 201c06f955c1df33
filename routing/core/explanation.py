"""Why a request gets the cache identity it gets: every component, its value and its source, and what would change it. No key, no salt.

Built by the same code that names a request's cache in the router (:mod:`routing.core.subject`, the register of components), from the same snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from namespaces.core import identity
from namespaces.core.component import Absent, Value
from namespaces.core.components import COMPONENTS
from namespaces.core.subject import Adapter, Artifact, Model, ScopeLevel, Sharing, Subject

NONCE = bytes(16)  # stands for what the router draws for each request, at sharing level none
DRAWN = "(drawn for each request)"
SHARES = {
    Sharing.TENANT: "every request of the tenant with the same remaining components",
    Sharing.SCOPE: "requests that act in the same scope, by whichever key",
    Sharing.KEY: "requests of the same key in the same scope",
    Sharing.NONE: "nothing: each request alone",
}
_NEW_ID = UUID(int=0)  # somebody else's key or scope


@dataclass(frozen=True, slots=True)
class Explained:
    """One component. ``value`` is plain data to show; None with ``absent`` False is an encoded null."""

    name: str
    source: str
    absent: bool
    value: Any


@dataclass(frozen=True, slots=True)
class Change:
    """Something that could happen, and which components it would change. Empty: the same blocks stay shared."""

    what: str
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The identity of one kind of request; components in encoding order."""

    schema: int
    sharing: str
    shared_with: str
    components: tuple[Explained, ...]
    changes: tuple[Change, ...]


def explain(subject: Subject) -> Explanation:
    """Explain ``subject``.

    Raises:
        ValueError: it contradicts itself.
    """
    return Explanation(
        schema=identity.SCHEMA,
        sharing=subject.sharing.value,
        shared_with=SHARES[subject.sharing],
        components=tuple(_explained(component.name, component.source, component.value(subject)) for component in COMPONENTS),
        changes=tuple(_changes(subject)),
    )


def _explained(name: str, source: str, value: Value) -> Explained:
    return Explained(name=name, source=source, absent=isinstance(value, Absent), value=None if isinstance(value, Absent) else _shown(name, value))


def _shown(name: str, value: Value) -> Any:
    """Ids as UUIDs, digests in hexadecimal."""
    if isinstance(value, list):
        return [_shown(name, item) for item in value]
    if isinstance(value, bytes):
        if name == "request":
            return DRAWN
        return str(UUID(bytes=value)) if len(value) == 16 else value.hex()
    return value


def _changes(subject: Subject) -> list[Change]:
    before = dict(identity.parts(subject))
    found = []
    for what, changed in _alternatives(subject).items():
        after = dict(identity.parts(changed(subject)))
        names = [component.name for component in COMPONENTS]
        found.append(Change(what=what, components=tuple(name for name in names if _of(before, name) != _of(after, name))))
    return found


def _of(parts: Mapping[str, Value], name: str) -> tuple[bool, Value]:
    return name in parts, parts.get(name)


Alternative = Callable[[Subject], Subject]


def _alternatives(subject: Subject) -> dict[str, Alternative]:
    """What could happen, in words, and the subject it would give."""
    tenant_epoch, endpoint_epoch = subject.epoch
    found: dict[str, Alternative] = {}
    path = ""
    for place, level in enumerate(subject.scope):
        path = f"{path}/{level.segment}".lstrip("/")
        raised = replace(level, version=level.version + 1)
        levels = (*subject.scope[:place], raised, *subject.scope[place + 1 :])
        found[f"scope {path or '(root)'} raised to version {raised.version}"] = lambda s, levels=levels: replace(s, scope=levels)  # type: ignore[misc]  # mypy cannot type a lambda's default
    found["acting in a scope below"] = lambda s: replace(s, scope=(*s.scope, ScopeLevel(id=_NEW_ID, segment="below", version=1)))
    found["another key of the same scope"] = lambda s: replace(s, key_id=s.key_id and _NEW_ID)
    found[f"endpoint epoch rotated to {endpoint_epoch + 1}"] = lambda s: replace(s, epoch=(tenant_epoch, endpoint_epoch + 1))
    found[f"tenant epoch rotated to {tenant_epoch + 1}"] = lambda s: replace(s, epoch=(tenant_epoch + 1, endpoint_epoch))
    model = subject.model
    weights = Model(model.name, f"{model.revision}+", model.quantisation, model.kv_dtype)
    found["another weights revision"] = lambda s: replace(s, model=weights)
    found["another tokenizer revision"] = lambda s: replace(s, tokenizer=_revised(s.tokenizer))
    found["another chat template revision"] = lambda s: replace(s, chat_template=_revised(s.chat_template))
    if subject.adapter is not None:
        again = Adapter(subject.adapter.name, subject.adapter.revision, subject.adapter.generation + 1)
        found["adapter reloaded"] = lambda s: replace(s, adapter=again)
    for name, version in subject.context:
        other = tuple((key, held + "+" if key == name else held) for key, held in subject.context)
        found[f"another version of context {name} (now {version})"] = lambda s, other=other: replace(s, context=other)  # type: ignore[misc]  # as above
    for sharing in Sharing:
        if sharing is not subject.sharing:
            found[f"sharing level {sharing.value}"] = lambda s, sharing=sharing: _shared_at(s, sharing)  # type: ignore[misc]  # as above
    found["other sampling parameters, other header order"] = lambda s: s
    return found


def _revised(artifact: Artifact) -> Artifact:
    return Artifact(artifact.digest, f"{artifact.revision or ''}+")


def _shared_at(subject: Subject, sharing: Sharing) -> Subject:
    alone = sharing in (Sharing.KEY, Sharing.NONE)
    key_id = (subject.key_id or _NEW_ID) if alone else None
    return replace(subject, sharing=sharing, key_id=key_id, request_nonce=NONCE if sharing is Sharing.NONE else None)
