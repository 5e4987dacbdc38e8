"""The words of the course, each in a few sentences, with a link and the notebook that shows it."""

from __future__ import annotations

import difflib
import html
from dataclasses import dataclass

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

    HEAD = ("term", "what it means", "notebook")
    row = property(lambda self: (self.term, self.text, self.notebook))

    def table(self) -> Table:
        """Return the meaning, the link and the notebook."""
        return Table([(self.text,)], title=self.term, foot=(self.link, f"notebook {self.notebook}"))

    def _repr_html_(self) -> str:
        told = (self.term, self.text, self.link, self.link.split("/")[2], self.notebook)
        term, text, link, site, notebook = map(html.escape, told)
        where = f"<a href='{link}'>{site}</a>, notebook {notebook}"
        return f"<b>{term}</b>: {text} <small>{where}</small>"


def glossary(term: str | None = None) -> Term | Listing:
    """Explain a word of the course, or all; ValueError suggests the nearest to an unknown one."""
    terms = [Term(name, **entry) for name, entry in entries("glossary.json").items()]
    if term is None:
        return Listing(terms)
    known = {name.lower(): each for each in terms for name in (*each.aka, each.term)}
    if (asked := " ".join(str(term).lower().split())) in known:
        return known[asked]
    near = dict.fromkeys(known[name].term for name in difflib.get_close_matches(asked, known))
    said = f"did you mean {' or '.join(map(repr, near))}?" if near else "lk.glossary() lists all."
    raise ValueError(f"Unknown term {term!r}; {said}")
