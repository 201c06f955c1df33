"""A policy document as it stands in a form, as fields or as YAML, with what is wrong with it: for every page that writes policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest, QueryDict

from routing.core import policy_form
from routing.core.policy import SCORERS
from routing.services import policies, policy_text
from tenants.core.errors import Invalid, Refusal

TURNS = {"yaml": "yaml", "form": "form", "fields": "form"}  # a button that stores nothing -> how the form comes back
ELSEWHERE = ("name", "share")  # fields of the same form that are no part of the document
_FORM_NAMES = frozenset({"policy", *policy_form.ROUTING_DEFAULTS, *policy_form.SLO_DEFAULTS, *(f"weights.{name}" for name in SCORERS)})


@dataclass(frozen=True, slots=True)
class Written:
    """A document as it stands in the form: as fields (``way`` form) or as YAML. ``problems`` are (field, message)."""

    kind: policies.Kind
    way: str
    texts: dict[str, str]
    yaml: str
    problems: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, kind: policies.Kind, spec: dict[str, Any], way: str) -> Written:
        """A stored document."""
        return cls(kind, way, policy_form.values(kind, spec), policy_text.write(spec))

    @classmethod
    def posted(cls, kind: policies.Kind, post: QueryDict) -> Written:
        """What was sent. Whoever sends no ``way`` sends YAML."""
        texts = {name: str(post.get(name, ""))[: policy_form.MAX_CHARACTERS] for name in post if name in _FORM_NAMES}
        return cls(kind, "form" if post.get("way") == "form" else "yaml", texts, post.get("spec", ""))

    def document(self) -> dict[str, Any]:
        """The document, compiled.

        Raises:
            Invalid: it cannot run.
        """
        return policy_text.fill(self.texts, self.kind) if self.way == "form" else policy_text.parse(self.yaml, self.kind)

    def refused(self, refusal: Refusal) -> Written:
        """With what is wrong, each by its field."""
        return replace(self, problems=((refusal.field or "", refusal.message), *refusal.others))

    def turned(self, way: str) -> Written:
        """The same document the other way; where YAML cannot be read it stays, with what is wrong."""
        if way == self.way:
            return self
        if way == "yaml":
            return replace(self, way=way, yaml=policy_text.write(policy_form.document(self.kind, self.texts)))
        try:
            return replace(self, way=way, texts=policy_form.values(self.kind, policy_text.parse(self.yaml, self.kind)))
        except Invalid as refusal:
            return self.refused(refusal)

    def wrong(self, field: str) -> str:
        """What is wrong with a field beside the document, or an empty text."""
        return next((message for name, message in self.problems if name == field), "")

    def shown(self) -> dict[str, Any]:
        """For ``console/_policy_document.html``."""
        wrong = {field.removeprefix("spec."): message for field, message in self.problems}
        named = self.texts.get("policy", "ettft")
        rows = [(field, self.texts.get(field.name, ""), wrong.get(field.name, "")) for field in policy_form.form_fields(self.kind, named)]
        return {
            "kind": self.kind,
            "written": self,
            "rows": rows,
            "policy_name": named,
            "policy_names": policy_form.POLICIES,
            "problems": [one for one in self.problems if one[0] not in ELSEWHERE],
        }


def way_of(request: HttpRequest) -> str:
    """How a form begins: as fields, unless ``?way=yaml``."""
    return "yaml" if request.GET.get("way") == "yaml" else "form"
