"""How the console writes numbers and times: units always shown, an unknown value always the same dash."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache

from django import template
from django.contrib.messages.storage.base import Message
from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

from routing.core import glossary

register = template.Library()
UNKNOWN = "–"  # noqa: RUF001 - a dash, as printed tables have it

_WORDS = {term.label: code for code, term in glossary.GROUPS["word"].terms.items()}
_WORD = re.compile(rf"(?<![\w-])({'|'.join(sorted(map(re.escape, _WORDS), key=len, reverse=True))})s?(?![\w-])", re.IGNORECASE)


def known(value: object) -> bool:
    """Whether there is a value. An attribute of an absent object reaches a filter as an empty text."""
    return value is not None and value != ""


@register.filter
def seconds(value: float | None) -> str:
    """``0.0123`` is "12.3 ms", ``2.5`` is "2.50 s", None is a dash."""
    if value is None or not known(value):
        return UNKNOWN
    size = abs(value)
    if size == 0:
        return "0 s"
    if size < 0.0995:
        return f"{value * 1000:.1f} ms" if size < 0.00995 else f"{value * 1000:.0f} ms"
    if size < 0.9995:
        return f"{value * 1000:.0f} ms"
    if size < 120:
        return f"{value:.2f} s"
    return f"{value / 60:.1f} min"


@register.filter
def count(value: float | None) -> str:
    """Whole numbers with thousands apart; None is a dash."""
    return UNKNOWN if value is None or not known(value) else f"{round(value):,}"


@register.filter
def estimated(value: float | None, inexact: object) -> str:
    """As :func:`count`, with a sign that it is an estimate where something is ``inexact``; nothing is no estimate."""
    return f"≈ {count(value)}" if inexact and value else count(value)


@register.filter
def share(value: float | None) -> str:
    """``0.873`` is "87.3 %"; None is a dash."""
    if value is None or not known(value):
        return UNKNOWN
    percent = round(value * 100, 1)
    return f"{percent:.0f} %" if percent == int(percent) else f"{percent:.1f} %"


@register.filter
def axis_seconds(value: float) -> str:
    """A value on an axis of seconds, in the fewest digits."""
    return f"{value:g} s" if value >= 1 or value == 0 else f"{value * 1000:g} ms"


@register.filter
def axis_value(value: float, unit: str) -> str:
    """A value on an axis of this unit."""
    if unit == "seconds":
        return axis_seconds(value)
    return share(value) if unit == "share" else f"{value:g}"


@register.filter
def rate(value: float | None) -> str:
    """A rate or a small quotient in three digits; None is a dash."""
    if value is None or not known(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@register.filter
def curl_body(model: str) -> str:
    """The body of a chat request for ``model``, quoted for a shell: a name chosen by one person must not run in another's terminal."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    return shlex.quote(json.dumps(body))


@register.filter
def python_literal(text: str) -> str:
    """``text`` as Python source."""
    return repr(text)


@register.filter
def words(value: str) -> str:
    """A name of ours, such as ``client_error``, as words."""
    return value.replace("_", " ")


@register.filter
def fields(document: Mapping[str, object]) -> list[tuple[str, object]]:
    """What stands in a policy document, by dotted name as its refusals have it: ``weights.wait`` for what is nested."""
    return [
        pair
        for name, value in document.items()
        for pair in ([(f"{name}.{part}", one) for part, one in value.items()] if isinstance(value, Mapping) else [(name, value)])
    ]


@register.filter
def label(code: str, group: str) -> str:
    """A code of a group of the glossary as people read it, without a link: for options, legends and what is drawn."""
    return glossary.label(group, code)


@register.filter
def tone(outcome: str) -> str:
    """The colour class of an outcome: good, warn or bad."""
    return {"ok": "good", "client_error": "warn", "client_cancelled": "warn", "refused": "warn"}.get(outcome, "bad")


@register.filter
def proof_tone(value: str) -> str:
    """The colour class of an isolation state, of an audit's outcome, or of its state while it has none."""
    good, warn, bad = ("isolated", "pass"), ("suspect", "inconclusive", "refused"), ("quarantined", "fail")
    return "good" if value in good else "warn" if value in warn else "bad" if value in bad else ""


@register.filter
def state_tone(value: str) -> str:
    """The colour class of the state that people gave a replica."""
    return "good" if value == "active" else "warn"


@register.filter
def severity_tone(value: str) -> str:
    """The colour class of a finding's severity."""
    return {"critical": "bad", "warning": "warn"}.get(value, "")


@register.filter
def parts_per_million(value: int | None) -> str:
    """Parts per million as a share in two digits after the point: 12500 is "1.25 %"; None is a dash."""
    return UNKNOWN if value is None or not known(value) else f"{value / 10_000:.2f} %"


_RATE_FROM = {
    "prompts": "as seen with long prompts",
    "routers": "as routers learned it",
    "shorter_prompts": "as seen with shorter prompts",
    "default": "assumed: too few streamed answers were seen",
}


@register.filter
def rate_source(value: str) -> str:
    """Where the prefill rate of an expected cost comes from (routing.services.identity_events.RateFrom), in words."""
    return _RATE_FROM.get(value, value)


@register.filter
def add_float(value: float, other: float) -> float:
    """The sum; Django's own ``add`` truncates to whole numbers."""
    return float(value) + float(other)


@register.filter
def ago(value: datetime | None) -> str | SafeString:
    """A moment as a distance from now, with the exact time in UTC as the element's title."""
    if value is None or not known(value):
        return UNKNOWN
    exact = value.astimezone(timezone.get_default_timezone())
    text = exact.strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html('<time datetime="{}" title="{}">{}</time>', exact.isoformat(timespec="seconds"), text, _distance(timezone.now() - value))


@register.filter
def moment(value: datetime | None) -> str:
    """A moment in UTC to the second."""
    return UNKNOWN if value is None or not known(value) else value.astimezone(timezone.get_default_timezone()).strftime("%Y-%m-%d %H:%M:%S UTC")


@register.filter
def at(said: Iterable[Message], place: str) -> list[Message]:
    """The messages that belong to a place of the page (their extra tag); the others stand at its top."""
    return [one for one in said if one.extra_tags == place]


@register.filter
def lookup(mapping: dict[object, object], key: object) -> object:
    """The value under ``key``, or None."""
    return mapping.get(key)


@register.simple_tag(takes_context=True)
def explained(context: Context, group: str, code: object, tone: str = "", *, pill: bool = False) -> str | SafeString:
    """A word of a group of the glossary as people read it: its meaning as the title, and a link to where it stands in full, for whoever has no mouse.

    Where logs, metrics and API say the code, it stands there too. A code that the glossary lacks (a newer router's) is shown without a link.
    """
    return _explained(context["tenant"].slug, group, str(code), f"pill {tone}" if pill else tone) if known(code) else UNKNOWN


@lru_cache(maxsize=4096)  # a page of a thousand replicas says the same dozen words
def _explained(slug: str, group: str, code: str, classes: str) -> SafeString:
    found, shown = glossary.term(group, code), glossary.shown(group, code)
    if found is None:
        return format_html('<span class="{}">{}</span>', classes.strip(), shown) if classes.strip() else format_html("<span>{}</span>", shown)
    address = f"{reverse('console:terms', args=[slug])}#{glossary.anchor(group, code)}"
    return format_html('<a class="{}" href="{}" title="{}">{}</a>', f"term {classes}".strip(), address, found.meaning, shown)


@register.simple_tag(takes_context=True)
def with_terms(context: Context, text: str) -> SafeString:
    """Text of ours with the glossary's words led to where they are explained, each where it first stands. Everything else is text."""
    slug, left, parts, at = context["tenant"].slug, set(_WORDS.values()), [], 0
    for found in _WORD.finditer(text):
        code = _WORDS[found[1].lower()]
        if code in left:
            left.remove(code)
            term = glossary.GROUPS["word"].terms[code]
            address = f"{reverse('console:terms', args=[slug])}#{glossary.anchor('word', code)}"
            parts += [
                escape(text[at : found.start()]),
                format_html('<a class="term" href="{}" title="{}">{}</a>', address, term.meaning, found[0]),
            ]
            at = found.end()
    return mark_safe("".join([*parts, escape(text[at:])]))  # noqa: S308 - each part is escaped above


def _distance(passed: timedelta) -> str:
    later = passed < timedelta(0)
    total_s = abs(passed).total_seconds()
    if total_s < 5:
        return "now"
    for limit_s, unit_s, unit in ((90, 1, "s"), (5400, 60, "min"), (129_600, 3600, "h"), (float("inf"), 86_400, "d")):
        if total_s < limit_s:
            words = f"{round(total_s / unit_s)} {unit}"
            return f"in {words}" if later else f"{words} ago"
    raise AssertionError("the last limit is infinite")
