"""The words of the course, each in a few sentences, with a link and the notebook that shows it."""

from __future__ import annotations

import difflib
import html
import json
from dataclasses import dataclass
from pathlib import Path

import labkit
from labkit.results.result import Result, Table


@dataclass(frozen=True, repr=False)
class Term(Result):
    """A word: what it means, where its makers explain it, which notebook shows it."""

    term: str
    text: str
    link: str
    notebook: str
    aka: list[str]  # other names of it

    def table(self) -> Table:
        """Return the meaning, the link and the notebook."""
        return Table([(self.text,)], title=self.term, foot=(self.link, f"notebook {self.notebook}"))

    def _repr_html_(self) -> str:
        term, text, link = (html.escape(each) for each in (self.term, self.text, self.link))
        return (f"<b>{term}</b>: {text} <small><a href='{link}'>{link.split('/')[2]}</a>, "
                f"notebook {self.notebook}</small>")  # fmt: skip


class Glossary(Result, tuple):
    """All the words; prints as a table."""

    def table(self) -> Table:
        """Return each word with its meaning and notebook."""
        return Table([(t.term, t.text, t.notebook) for t in self], left=(0, 1))


def glossary(term: str | None = None) -> Term | Glossary:
    """Explain a word of the course, or all; ValueError suggests the nearest to an unknown one."""
    file = Path(labkit.__file__).parent / "data" / "glossary.json"
    terms = [Term(n, **entry) for n, entry in json.loads(file.read_text(encoding="utf-8")).items()]
    if term is None:
        return Glossary(terms)
    known = {name.lower(): each for each in terms for name in (*each.aka, each.term)}
    if (asked := " ".join(str(term).lower().split())) in known:
        return known[asked]
    near = dict.fromkeys(known[name].term for name in difflib.get_close_matches(asked, known))
    said = f"did you mean {' or '.join(map(repr, near))}?" if near else "lk.glossary() lists all."
    raise ValueError(f"Unknown term {term!r}; {said}")
