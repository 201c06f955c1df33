"""The artifacts that this process knows, what is known of each, and the few of the platform's catalogue that are compiled in this process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from routing.prompts.encoding import Encoder, TokenizerFacts, TokenizerRefused
from routing.prompts.messages import ContentFormat
from routing.prompts.pool import Artifact, Pool, Refused
from routing.prompts.template import ChatTemplate, TemplateFacts, TemplateRefused, compile_artifact
from routing.prompts.types import Kind, Reason

MAX_ADMISSIONS = 4096
MAX_HELD_BYTES = 1024 * 1024 * 1024
_MISSING: dict[Kind, Reason] = {"tokenizer": "no_tokenizer", "chat_template": "no_template"}
_BAD: dict[Kind, Reason] = {"tokenizer": "bad_tokenizer", "chat_template": "bad_template"}


@dataclass(frozen=True, slots=True)
class NamedTemplates:
    """What the preparing side knows of a template artifact."""

    named: Mapping[str, TemplateFacts]
    specials: Mapping[str, str] | None
    added: frozenset[str]


Facts = TokenizerFacts | NamedTemplates


class Artifacts:
    """Contents by digest; facts by tenant and digest, since they come from a worker of that tenant."""

    def __init__(self, pool: Pool, catalogue: frozenset[bytes]) -> None:
        self._pool = pool
        self._catalogue = catalogue
        self._contents: dict[tuple[Kind, bytes], bytes] = {}
        self._facts: OrderedDict[tuple[bytes, Kind, bytes], Facts | Reason] = OrderedDict()
        self._admissions: dict[tuple[bytes, Kind, bytes], asyncio.Task[Facts]] = {}
        self._encoders: dict[bytes, Encoder] = {}
        self._templates: dict[bytes, ChatTemplate] = {}
        self.refused_bytes = 0

    def load(self, digest: bytes, content: bytes, kind: Kind) -> bool:
        """Make a content known; False when there is no room for it."""
        if (kind, digest) not in self._contents and self.held_bytes() + len(content) > MAX_HELD_BYTES:
            self.refused_bytes += len(content)
            return False
        self._contents[kind, digest] = content
        return True

    def unload(self, digest: bytes, kind: Kind) -> None:
        self._contents.pop((kind, digest), None)
        for key in [key for key in self._facts if key[1:] == (kind, digest)]:
            del self._facts[key]
        if kind == "tokenizer":
            self._encoders.pop(digest, None)
        else:
            self._templates.pop(digest, None)
        self._pool.forget(kind, digest)

    def known(self, digest: bytes, kind: Kind) -> bool:
        return (kind, digest) in self._contents

    def held_bytes(self) -> int:
        return sum(map(len, self._contents.values()))

    def need(self, digest: bytes, kind: Kind) -> Artifact:
        """The artifact for a job.

        Raises:
            Refused: it is not known here.
        """
        content = self._contents.get((kind, digest))
        if content is None:
            raise Refused(_MISSING[kind])
        return Artifact(kind, digest, content)

    def encoder(self, digest: bytes) -> Encoder | None:
        """A catalogue's tokenizer, in this process."""
        return self._encoders.get(digest)

    def template(self, digest: bytes) -> ChatTemplate | None:
        """A catalogue's template, in this process."""
        return self._templates.get(digest)

    async def tokenizer_facts(self, owner: bytes, digest: bytes) -> TokenizerFacts:
        """As ``facts``."""
        return cast(TokenizerFacts, await self.facts(owner, digest, "tokenizer"))

    async def template_facts(self, owner: bytes, digest: bytes) -> NamedTemplates:
        """As ``facts``."""
        return cast(NamedTemplates, await self.facts(owner, digest, "chat_template"))

    async def facts(self, owner: bytes, digest: bytes, kind: Kind) -> Facts:
        """What is known of an artifact; it is compiled for that if it has not been. Compiling goes on when the caller is gone.

        Raises:
            Refused: not known, bad, set aside, or the sandbox failed.
        """
        key = (owner if digest not in self._catalogue else b"", kind, digest)
        held = self._facts.get(key)
        if held is not None:
            self._facts.move_to_end(key)
            if isinstance(held, str):
                raise Refused(held)
            return held
        task = self._admissions.get(key)
        if task is None:
            task = self._admissions[key] = asyncio.get_running_loop().create_task(self._admit(key, owner))
            task.add_done_callback(lambda done: self._admitted(key, done))
        return await asyncio.shield(task)

    async def _admit(self, key: tuple[bytes, Kind, bytes], owner: bytes) -> Facts:
        _, kind, digest = key
        need = self.need(digest, kind)
        if digest in self._catalogue:
            facts = await asyncio.get_running_loop().run_in_executor(None, self._compile_here, need)
        else:
            value = await self._pool.run(owner=owner, needs=[need], culprit=digest, operation="facts", arguments=[kind, digest], limit_s=5.0)
            facts = _from_worker(kind, value)
        self._remember(key, facts)
        return facts

    def _compile_here(self, need: Artifact) -> Facts:
        """Compile a catalogue's artifact in this process. A large tokenizer holds the interpreter's lock for half a second, once."""
        try:
            if need.kind == "tokenizer":
                encoder = self._encoders[need.digest] = Encoder(need.content)
                return encoder.facts
            template = self._templates[need.digest] = compile_artifact(need.content)
            return _templates(template.facts())
        except TokenizerRefused:
            raise Refused("bad_tokenizer") from None
        except TemplateRefused as refused:
            raise Refused(refused.reason) from None

    def _admitted(self, key: tuple[bytes, Kind, bytes], task: asyncio.Task[Facts]) -> None:
        del self._admissions[key]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Refused) and error.reason == _BAD[key[1]] and self.known(key[2], key[1]):
            self._remember(key, error.reason)

    def _remember(self, key: tuple[bytes, Kind, bytes], facts: Facts | Reason) -> None:
        self._facts[key] = facts
        while len(self._facts) > MAX_ADMISSIONS:
            self._facts.popitem(last=False)


def _from_worker(kind: Kind, value: Any) -> Facts:
    try:
        return TokenizerFacts.from_object(value) if kind == "tokenizer" else _templates(value)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        raise Refused("worker") from None


def _templates(value: Any) -> NamedTemplates:
    named = {str(name): TemplateFacts(_format(form), bool(developer), tuple(special)) for name, (form, developer, special) in value["named"].items()}
    specials = value["specials"]
    return NamedTemplates(named, None if specials is None else {str(name): str(text) for name, text in specials.items()}, frozenset(value["added"]))


def _format(value: object) -> ContentFormat:
    return "openai" if value == "openai" else "string"
