"""The sandbox's inside: a process that compiles, renders and tokenises what tenants uploaded, and can do nothing else.

It is started with no environment, no open files but its two pipes, in an empty folder, and gives up what it does not need before it reads the first
byte: memory, files and processor time are limited, no file can be written or opened any more. It holds no key and no other tenant's text: it
works for one tenant only, for as long as it lives. Who starts it ends it (``pool.py``), by wall time too.

    python -I -S -B -c BOOT MEMORY_BYTES PATH...
"""

from __future__ import annotations

import codecs
import contextlib
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from routing.prompts import faults, frames
from routing.prompts.encoding import Encoder, TokenizerRefused
from routing.prompts.template import ChatTemplate, TemplateRefused, compile_artifact, render, rendered

# What a fresh interpreter runs: it knows no path but those it is given.
BOOT = "import sys; sys.path[:] = sys.argv[2:]; from routing.prompts.worker import main; main(int(sys.argv[1]))"
MAX_HELD = 8  # artifacts of a kind that a worker keeps compiled
# What is imported late must be imported before the rights are given up, since no file can be opened later: codecs, and what these templates use.
CODECS = ("ascii", "latin-1", "utf-8", "unicode_escape", "raw_unicode_escape", "idna", "punycode", "utf-16", "utf-32")
WARM_UP = """{%- macro m(x) %}{{ x | trim | tojson }}{{ x | pprint }}{{ 'a\\n' | urlize }}{% endmacro %}{%- set ns = namespace(n=1) %}
{%- for a in messages %}{% if loop.first %}{{ m(a.b) ~ loop.index0 }}{% else %}{% break %}{% endif %}{% endfor %}
{{- '%s {}' | format(1) }}{{ "{}".format(ns.n) }}{{ messages | length }}{% generation %}x{% endgeneration %}"""
FAILS = ("{{ raise_exception('no') }}", "{{ messages.x.y }}", "{{ ''.__class__.__mro__ }}", "{{ 1 // 0 }}", "{% if %}")


@dataclass(slots=True)
class Worker:
    """The artifacts that this process has compiled, and what can be done with them."""

    templates: dict[bytes, ChatTemplate] = field(default_factory=dict)
    encoders: dict[bytes, Encoder] = field(default_factory=dict)

    def answer(self, request: list[Any]) -> list[Any]:
        """The answer to one request: ["ok", value], or ["no", reason]."""
        operations: dict[str, Callable[..., Any]] = {
            "ready": lambda: True,
            "facts": self.facts,
            "tokenizer": self.load_tokenizer,
            "chat_template": self.load_template,
            "render": self.render,
            "cut": self.cut,
            "encode": self.encode,
            "fault": faults.fault,
        }
        try:
            operation, processor_s, *arguments = request
            _limit_processor(processor_s)
            return ["ok", operations[operation](*arguments)]
        except TemplateRefused as refused:
            return ["no", refused.reason]
        except TokenizerRefused:
            return ["no", "bad_tokenizer"]
        except MemoryError:
            return ["no", "memory"]
        except UnicodeEncodeError:  # a template made text that is no UTF-8
            return ["no", "template_error"]
        except BaseException:  # noqa: BLE001 - foreign code ran here (a panic of the tokenizer is no Exception); the process goes on, its caller is told
            return ["no", "worker"]

    def load_tokenizer(self, digest: bytes, content: bytes) -> None:
        _keep(self.encoders, digest, lambda: Encoder(content))

    def load_template(self, digest: bytes, content: bytes) -> None:
        _keep(self.templates, digest, lambda: _compile(content))

    def facts(self, kind: str, digest: bytes) -> dict[str, Any]:
        """What the other side must know of an artifact."""
        return self.encoders[digest].facts.as_object() if kind == "tokenizer" else self.templates[digest].facts()

    def render(self, digest: bytes, name: str, given: dict[str, Any], max_characters: int, tokenizer: bytes | None) -> list[Any]:
        """The prompt's text and where its exact part ends (-1: at the end); with a tokenizer the pieces and how many are exact."""
        text, exact = rendered(self.templates[digest], name, given, max_characters)
        if tokenizer is None:
            text.encode()
            return [text, exact]
        return self.cut(tokenizer, text, exact, self.templates[digest].named[name].content_format == "openai")

    def cut(self, digest: bytes, text: str, exact: int, closed: bool) -> list[Any]:
        """Pieces of a text, and how many of them are exact."""
        text.encode()
        return list(self.encoders[digest].cut(text, exact, closed=closed))

    def encode(self, digest: bytes, segments: list[str], add_special_tokens: bool) -> list[bytes]:
        return self.encoders[digest].encode(segments, add_special_tokens=add_special_tokens)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until the stream ends."""
    worker = Worker()
    while (request := frames.read(source)) is not None:
        sink.write(frames.pack(worker.answer(request)))
        sink.flush()


def main(memory_bytes: int) -> None:
    """Warm up, give up rights, serve."""
    for codec in CODECS:
        codecs.lookup(codec)
    given: dict[str, Any] = {"tools": None, "documents": None, "variables": {}, "add_generation_prompt": True, "continue_final_message": False}
    for source in (WARM_UP, *FAILS):
        with contextlib.suppress(TemplateRefused):
            render(compile_artifact(source.encode()).named["default"], messages=[{"b": {"c": "é"}}], **given)
    _give_up(memory_bytes)
    serve(sys.stdin.buffer, sys.stdout.buffer)


def _give_up(memory_bytes: int) -> None:
    os.nice(5)  # requests that need no sandbox go first
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 3),  # the two pipes and the null device: nothing can be opened beside them
    ):
        resource.setrlimit(limit, (value, value))


def _limit_processor(seconds: float) -> None:
    """Processor time for one request, over what was used before."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, resource.RLIM_INFINITY))


def _compile(content: bytes) -> ChatTemplate:
    try:
        return compile_artifact(content)
    except (TemplateRefused, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - compiling folds constants, which runs code of the template
        raise TemplateRefused("bad_template") from None


def _keep(held: dict[bytes, Any], digest: bytes, make: Callable[[], Any]) -> Any:
    """The compiled artifact; of too many the oldest goes, and is sent again when it is wanted."""
    if digest not in held:
        made = make()
        if len(held) >= MAX_HELD:
            del held[next(iter(held))]
        held[digest] = made
    return held[digest]
