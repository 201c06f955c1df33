"""What the console's words mean, on one page with an anchor for each, so that any of them can be led to from where it is shown."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from console.access import TenantPage
from routing.core import glossary


class Terms(TenantPage):
    """Every group of the glossary."""

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        groups = [(name, group, _anchored(name, group)) for name, group in glossary.GROUPS.items()]
        return self.page("console/terms.html", {"groups": groups})


def _anchored(name: str, group: glossary.Group) -> list[tuple[str, str, glossary.Term]]:
    """(anchor, code, term) of each of its terms."""
    return [(glossary.anchor(name, code), code, term) for code, term in group.terms.items()]
