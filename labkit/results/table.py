"""One table for everything the kit prints: aligned text in a terminal, HTML in a notebook."""

from __future__ import annotations

import html
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows of cells, with a head, and lines of text above and below; None shows as "-".

    Columns in `left` are aligned left, all others right; rows in `bold` stand out.
    """

    rows: Sequence[Sequence[Any]]
    head: Sequence[str] = ()
    title: str = ""
    foot: Sequence[str] = ()
    left: Collection[int] = (0,)
    bold: Collection[int] = ()

    def __str__(self) -> str:
        lines = [list(map(_cell, row)) for row in ([self.head] if self.head else []) + [*self.rows]]
        widths = [max(map(len, column)) for column in itertools.zip_longest(*lines, fillvalue="")]
        text = []
        for line in lines:
            cells = zip(range(len(line)), line, widths, strict=False)
            aligned = (x.ljust(w) if c in self.left else x.rjust(w) for c, x, w in cells)
            text.append("  ".join(aligned).rstrip())
        return "\n".join([*filter(None, [self.title]), *text, *filter(None, self.foot)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = self._html_row(self.head, "th") if self.head else ""
        body = "".join(
            self._html_row(row, "th" if number in self.bold else "td")
            for number, row in enumerate(self.rows)
        )
        above = f"<b>{html.escape(self.title)}</b>" if self.title else ""
        below = "".join(f"<div><small>{html.escape(line)}</small></div>" for line in self.foot)
        return f"{above}<table>{head}{body}</table>{below}"

    def _html_row(self, cells: Sequence[Any], tag: str) -> str:
        shown = (
            f"<{tag} style='text-align:{'left' if c in self.left else 'right'}'>"
            f"{html.escape(_cell(cell))}</{tag}>"
            for c, cell in enumerate(cells)
        )
        return f"<tr>{''.join(shown)}</tr>"


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)
