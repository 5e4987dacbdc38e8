"""What the package knows from elsewhere: the files of `labkit/data`, as listings; the glossary."""

from __future__ import annotations

import difflib
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labkit
from labkit.results.result import Result, Table

DATA = Path(labkit.__file__).parent / "data"


def entries(file: str) -> dict[str, Any]:
    """Return what is in a file of the data folder, by name."""
    return json.loads((DATA / file).read_text(encoding="utf-8"))


def entry(file: str, name: Any, what: str) -> Any:
    """Return one entry; ValueError says which there are, of `what`."""
    found = entries(file)
    if name not in found:
        raise ValueError(f"Unknown {what} {name!r}; available: {', '.join(found)}.")
    return found[name]


class Listing(Result, tuple):
    """Several results as one table: each has its cells in `row`, their names in `HEAD`."""

    def table(self) -> Table:
        """Return a row for each."""
        return Table([each.row for each in self], self[0].HEAD, left=range(9))


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
