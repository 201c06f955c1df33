"""A policy document as people write it: YAML (so JSON too), read with the rules of declarations, or a form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from routing.core import policy_form
from routing.services import policies
from routing.services.declarations.reader import Reader
from tenants.core.errors import Invalid

# Of lists and mappings in one another; policies have three. At each piece PyYAML looks at all levels that are open: 5 KB of brackets took 10 s.
MAX_LEVELS = 20


def parse(text: str, kind: policies.Kind, *, field: str = "spec") -> dict[str, Any]:
    """Read a document and compile it as a router would.

    Raises:
        Invalid: too large, too deep, no YAML, no mapping, an alias, a key given twice, or what cannot run; the field is the path inside the document.
    """
    if len(text.encode(errors="replace")) > policies.MAX_SPEC_BYTES:
        raise Invalid(f"A policy document has at most {policies.MAX_SPEC_BYTES} bytes.", field=field)
    try:
        _refuse_odd(text, field)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise Invalid(f"This is no YAML: {where}{error.problem or error.context}.", field=field) from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise Invalid(f"This is no YAML ({type(error).__name__}).", field=field) from None
    if node is None:
        raise Invalid("Write a policy document, such as policy: ettft.", field=field)
    reader = Reader(Path(field))
    spec = reader.plain(node, field)
    if reader.problems:
        first = reader.problems[0]
        raise Invalid(f"Line {first.line}: {first.path} {first.message}.", field=first.path)
    if not isinstance(spec, dict):
        raise Invalid("A policy document is a mapping, such as policy: ettft.", field=field)
    policies.compiled(kind, spec, field=field)
    return spec


def _refuse_odd(text: str, field: str) -> None:
    level = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MAX_LEVELS:
            raise Invalid(f"A policy document has at most {MAX_LEVELS} levels of lists and mappings.", field=field)
        if isinstance(event, yaml.AliasEvent):
            raise Invalid("Write everything out: aliases are not read.", field=field)


def fill(texts: Mapping[str, str], kind: policies.Kind, *, field: str = "spec") -> dict[str, Any]:
    """The document of a filled-in form, compiled as a router would.

    Raises:
        Invalid: it cannot run; the field is the path inside the document.
    """
    spec = policy_form.document(kind, texts)
    policies.compiled(kind, spec, field=field)
    return spec


def write(spec: Any) -> str:
    """A stored document as YAML."""
    return yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=120)
