"""Why an artifact cannot be compiled, in words for whoever uploads it. Compiles it once more, so this runs in the sandbox (``worker.py``) alone."""

from __future__ import annotations

import jinja2
import msgspec

from routing.prompts.encoding import Encoder, TokenizerRefused
from routing.prompts.template import TemplateRefused, TooManyTokens, compile_artifact
from routing.prompts.types import Kind

MAX_CHARACTERS = 300
_Members = dict[str, msgspec.Raw]  # of a JSON object, none of them read
_OF_CONFIGURATION = frozenset({"tokenizer_class", "added_tokens_decoder", "chat_template"})


class _Model(msgspec.Struct):
    dropout: float | None = None


def fault(kind: Kind, content: bytes) -> str:
    """What is wrong with an artifact, without a full stop; "" where nothing is, or nothing more can be said."""
    try:
        if kind == "tokenizer":
            Encoder(content)
        else:
            compile_artifact(content)
    except TokenizerRefused as refused:
        return tidied(_of_tokenizer(_members(content), refused.__context__))
    except TemplateRefused as refused:
        return tidied(_of_template(_members(content), refused.__context__))
    return ""


def tidied(text: object) -> str:
    """One short line of a text that foreign content may have shaped."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split()) if isinstance(text, str) else ""
    return line[:MAX_CHARACTERS].rstrip(". ")


def _members(content: bytes) -> _Members | None:
    """The members of a JSON object; None where it is none."""
    try:
        return msgspec.json.decode(content, type=_Members)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _of_tokenizer(members: _Members | None, error: BaseException | None) -> str:
    if members is None:
        return "it is no JSON object"
    if "model" not in members and members.keys() & _OF_CONFIGURATION:
        return "this is a tokenizer_config.json, which goes where the chat template goes; give the tokenizer.json beside it"
    if "model" not in members:
        return "it has no member model, which every tokenizer.json has"
    if error is not None:
        return str(error).replace("`", "")
    if msgspec.json.decode(members["model"], type=_Model).dropout:
        return "it leaves out merges at random (model.dropout), so that a text has other tokens each time"
    return "it has more added tokens than are taken"


def _of_template(members: _Members | None, error: BaseException | None) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, TooManyTokens):
        return "it lists more tokens than are taken"
    if members is None:
        return str(error) if isinstance(error, jinja2.TemplateError) else ""
    if "chat_template" in members:
        return "its chat_template is neither the text of a template nor a list of named ones with a default"
    if "model" in members:
        return "this is a tokenizer.json; give the template's text, or the tokenizer_config.json beside it"
    return "it is JSON without a chat_template; give the template's text, or a tokenizer_config.json that holds one"
