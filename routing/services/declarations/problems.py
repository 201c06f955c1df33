"""What is wrong with a declaration, each with its place in the file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One error. ``path`` is the dotted path of the field, empty for the file as a whole."""

    line: int
    path: str
    message: str

    def render(self, file: str) -> str:
        """As editors and people read it: ``FILE:LINE: field.path: message``."""
        return f"{file}:{self.line}: {self.path}: {self.message}" if self.path else f"{file}:{self.line}: {self.message}"


class DeclarationError(Exception):
    """A declaration that cannot be applied; nothing was changed. Holds every problem that was found, in the order of the file."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = sorted(set(problems))
        super().__init__("\n".join(problem.render(file) for problem in self.problems))
