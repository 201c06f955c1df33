"""Chat templates in the real Jinja2, set up as Hugging Face's ``apply_chat_template`` sets it up.

An artifact is the template's text, or a whole ``tokenizer_config.json``, which also tells the special tokens by name and may hold several named
templates. Rendering runs the template's code: nothing here bounds it, that is the sandbox's part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from routing.prompts import content_format
from routing.prompts.messages import ContentFormat
from routing.prompts.types import MAX_ADDED_CHARACTERS, MAX_ADDED_TOKENS, Reason

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MAX_SPECIALS = 256  # special tokens with names, which go along with each rendering
MAX_SPECIALS_CHARACTERS = 64 * 1024
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # marks the end of the message to be continued; as text of a message it would confuse Hugging Face's code too


class TemplateRefused(Exception):
    """The template cannot be used, or not for this conversation."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class TooManyTokens(ValueError):
    """A configuration lists more tokens than are taken; it is refused."""


class _DateAsked(Exception):
    """The template asked for the time, or for chance: what it writes is not ours to know."""


class _Generation(jinja2.ext.Extension):
    """The ``generation`` block marks what the model wrote; for a prompt it is its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Any) -> Any:
        return caller()


@dataclass(frozen=True, slots=True)
class NamedTemplate:
    """One compiled template and what is read from its text."""

    source: str
    code: jinja2.Template
    content_format: ContentFormat
    knows_developer: bool
    special_names: tuple[str, ...]  # what it refers to by a name that special tokens have


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What the preparing side must know of one named template; travels between processes as a list."""

    content_format: ContentFormat
    knows_developer: bool
    special_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The templates of an artifact by name, and the special tokens where it tells them. ``added``: added tokens that its configuration lists."""

    named: Mapping[str, NamedTemplate]
    specials: Mapping[str, str] | None
    added: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """For the other side of the pipe."""
        named = {name: [each.content_format, each.knows_developer, list(each.special_names)] for name, each in self.named.items()}
        return {"named": named, "specials": None if self.specials is None else dict(self.specials), "added": list(self.added)}


def compile_artifact(content: bytes) -> ChatTemplate:
    """Compile an artifact.

    Raises:
        TemplateRefused: not UTF-8, not Jinja, or a configuration without a template, or with more tokens than are taken.
    """
    try:
        text = content.decode()
        configuration = _configuration(text)
        if configuration is None:
            return ChatTemplate({"default": _compile(text)}, None, ())
        named = {name: _compile(source) for name, source in _sources(configuration.get("chat_template")).items()}
        specials = _specials(configuration)
        _bounded(specials.values(), MAX_SPECIALS, MAX_SPECIALS_CHARACTERS)
        listed = configuration.get("added_tokens_decoder")
        added = tuple(shown for each in listed.values() if (shown := _token_text(each))) if isinstance(listed, dict) else ()
        _bounded(added, MAX_ADDED_TOKENS, MAX_ADDED_CHARACTERS)
        return ChatTemplate(named, specials, added)
    except (UnicodeDecodeError, jinja2.TemplateError, RecursionError, TypeError, ValueError):
        raise TemplateRefused("bad_template") from None


def choose(names: Sequence[str], *, tools: bool) -> str:
    """The template that is used: ``tool_use`` for tools, where there is one."""
    return "tool_use" if tools and "tool_use" in names else "default"


def render(
    template: NamedTemplate,
    *,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    documents: list[Any] | None,
    variables: Mapping[str, Any],
    add_generation_prompt: bool,
    continue_final_message: bool,
) -> str:
    """The prompt's text. ``variables`` hold the special tokens and whatever the client set.

    Raises:
        TemplateRefused: the template refused the conversation, or asked for the date.
    """
    final = ""
    if continue_final_message:
        messages, final = _tagged(template, messages)
    try:
        text = template.code.render(messages=messages, tools=tools, documents=documents, add_generation_prompt=add_generation_prompt, **variables)
    except _DateAsked:
        raise TemplateRefused("date") from None
    except MemoryError:
        raise TemplateRefused("memory") from None
    except Exception:  # noqa: BLE001 - a template is foreign code and may raise anything; the engine refuses the request then
        raise TemplateRefused("template_error") from None
    return _untagged(text, final) if continue_final_message else text


def rendered(template: ChatTemplate, name: str, given: dict[str, Any], max_characters: int) -> tuple[str, int]:
    """The prompt's text, and up to which character it is exact (-1: all). ``given`` are ``render``'s arguments, and ``marked`` messages or None.

    Raises:
        TemplateRefused: as ``render``, or the text is too long.
    """
    chosen = template.named[name]
    arguments = {each: value for each, value in given.items() if each != "marked"}
    text = render(chosen, **arguments)
    if len(text) > max_characters:
        raise TemplateRefused("too_long")
    if given["marked"] is None:
        return text, -1
    return text, _common_prefix(text, render(chosen, **{**arguments, "messages": given["marked"]}))


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _ask
    environment.globals["lipsum"] = _ask
    environment.filters["random"] = _ask
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _ask(*_given: Any, **_options: Any) -> NoReturn:
    raise _DateAsked


_ENVIRONMENT = _environment()


def _compile(source: object) -> NamedTemplate:
    if not isinstance(source, str):
        raise TypeError("a template is text")
    tree = _ENVIRONMENT.parse(source)
    names = jinja2.meta.find_undeclared_variables(tree)
    return NamedTemplate(
        source=source,
        code=_ENVIRONMENT.from_string(source),
        content_format=content_format.detect(tree),
        knows_developer='"developer"' in source or "'developer'" in source,
        special_names=tuple(sorted(name for name in names if name.endswith("_token"))),
    )


def _configuration(text: str) -> dict[str, Any] | None:
    """The artifact as a JSON object; None where it is a template's text."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _sources(templates: object) -> dict[str, object]:
    if isinstance(templates, list):  # named templates, as a list of {name, template}
        found = {each["name"]: each.get("template") for each in templates if isinstance(each, dict) and isinstance(each.get("name"), str)}
    else:
        found = {"default": templates}
    if "default" not in found:
        raise TemplateRefused("bad_template")
    return found


def _specials(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a template may refer to by name: the usual ones, and those of the model's own, by whatever names, which win.

    Source: Transformers 5.19, ``tokenization_utils_base.py`` (``_from_pretrained``, ``special_tokens_map``).
    """
    own = _texts({name: value for name, value in configuration.items() if name.endswith("_token") and name not in SPECIAL_NAMES})
    former = configuration.get("additional_special_tokens")  # the name of old, for the same
    extra = configuration.get("extra_special_tokens") or former
    own |= _texts(extra)
    own = own or _texts(configuration.get("model_specific_special_tokens"))  # where nothing else names one
    usual = _texts({name: configuration.get(name) for name in SPECIAL_NAMES})
    return usual | (_texts(former) if isinstance(extra, dict) else {}) | own


def _texts(tokens: object) -> dict[str, str]:
    """Tokens by name as their texts, without what is none."""
    return {name: text for name, value in tokens.items() if (text := _token_text(value)) is not None} if isinstance(tokens, dict) else {}


def _bounded(texts: Collection[str], count: int, characters: int) -> None:
    if len(texts) > count or sum(map(len, texts)) > characters:
        raise TooManyTokens


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _tagged(template: NamedTemplate, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The messages with the tag at the end of the last one's text, and that text."""
    last = dict(messages[-1])
    content = last.get("content")
    if content is None or "content" not in template.source:
        raise TemplateRefused("request")
    if isinstance(content, str):
        last["content"] = content + _TAG
        return [*messages[:-1], last], content
    parts = [dict(part) for part in content]
    part = next((part for part in reversed(parts) if "text" in part), None)
    if part is None:
        raise TemplateRefused("request")
    final = part["text"]
    part["text"] = final + _TAG
    last["content"] = parts
    return [*messages[:-1], last], final


def _untagged(text: str, final: str) -> str:
    if final.strip() not in text or _TAG.strip() not in text:
        raise TemplateRefused("request")
    place = text.rindex(_TAG.strip())
    # A template that strips messages has taken the tag's trailing space: then the text before the tag was stripped too, and is here.
    return text[:place] if text[place : place + len(_TAG)] == _TAG else text[:place].rstrip()


def _common_prefix(left: str, right: str) -> int:
    """How many characters two texts have in common at their start."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
