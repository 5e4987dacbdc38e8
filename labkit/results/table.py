"""One table for everything the kit prints: aligned text in a terminal, HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "-"  # how a value that was not measured is written


@dataclass(frozen=True)
class Table:
    """Rows of cells, with a head, and lines of text above and below; None is a missing value.

    Columns in `left` are aligned left, all others right; rows in `bold` stand out.
    """

    rows: Sequence[Sequence[Any]]
    head: Sequence[str] = ()
    title: str = ""
    foot: Sequence[str] = ()
    left: Collection[int] = (0,)
    bold: Collection[int] = ()

    def __str__(self) -> str:
        lines = [[_cell(cell) for cell in row] for row in ([self.head] if self.head else [])]
        lines += [[_cell(cell) for cell in row] for row in self.rows]
        columns = max(map(len, lines), default=0)
        widths = [max(len(line[c]) for line in lines if c < len(line)) for c in range(columns)]
        text = [
            "  ".join(
                cell.ljust(widths[c]) if c in self.left else cell.rjust(widths[c])
                for c, cell in enumerate(line)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*filter(None, [self.title]), *text, *filter(None, self.foot)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = _html_row(self.head, "th", self.left) if self.head else ""
        body = "".join(
            _html_row(row, "th" if number in self.bold else "td", self.left)
            for number, row in enumerate(self.rows)
        )
        above = f"<b>{html.escape(self.title)}</b>" if self.title else ""
        below = "".join(f"<div><small>{html.escape(line)}</small></div>" for line in self.foot)
        return f"{above}<table>{head}{body}</table>{below}"


def _cell(value: Any) -> str:
    return MISSING if value is None else str(value)


def _html_row(cells: Sequence[Any], tag: str, left: Collection[int]) -> str:
    shown = (
        f"<{tag} style='text-align:{'left' if c in left else 'right'}'>"
        f"{html.escape(_cell(cell))}</{tag}>"
        for c, cell in enumerate(cells)
    )
    return f"<tr>{''.join(shown)}</tr>"
