"""The words of the course: `lk.glossary(term)`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import ClassVar

from labkit.results.result import Result, Table
from labkit.results.shipped import Listing, entries


@dataclass(frozen=True, repr=False)
class Term(Result):
    """A word: what it means, where its makers explain it, which notebook shows it."""

    term: str
    text: str
    link: str
    notebook: str
    aka: list[str]  # other names of it

    HEAD: ClassVar = ("term", "what it means", "notebook")

    @property
    def row(self) -> tuple[str, ...]:
        """Its cells in a listing's table."""
        return (self.term, self.text, self.notebook)

    def table(self) -> Table:
        """Return the meaning, the link and the notebook."""
        return Table([(self.text,)], title=self.term, foot=(self.link, f"notebook {self.notebook}"))


def glossary(term: str | None = None) -> Term | Listing:
    """Explain a word of the course, or all; ValueError suggests the nearest to an unknown one."""
    terms = [Term(name, **entry) for name, entry in entries("glossary.json").items()]
    if term is None:
        return Listing(terms)
    known = {}
    for each in terms:
        for name in (each.term, *each.aka):
            known[name.lower()] = each
    asked = " ".join(str(term).lower().split())
    if asked in known:
        return known[asked]
    near = dict.fromkeys(known[name].term for name in difflib.get_close_matches(asked, known))
    hint = "lk.glossary() lists all."
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    raise ValueError(f"Unknown term {term!r}; {hint}")
