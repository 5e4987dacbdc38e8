"""The base of every result: it prints as a table, draws itself, and becomes JSON types."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

# What may steer a terminal, hide text or turn its direction, and what no terminal can show
STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
COPY = "navigator.clipboard.writeText(this.dataset.text); this.textContent = &quot;copied&quot;"


@dataclass(frozen=True)
class Table:
    """Rows of cells, with a head, and lines of text above and below; None shows as "-".

    Columns in `left` are aligned left, all others right; rows in `bold` stand out. A notebook has
    a button for each text in `copies`, which puts it on the clipboard.
    """

    rows: Sequence[Sequence[object]]
    head: Sequence[str] = ()
    title: str = ""
    foot: Sequence[str] = ()
    left: Collection[int] = (0,)
    bold: Collection[int] = ()
    copies: Mapping[str, str] = field(default_factory=dict)  # {"PyTorch": what to type}

    def __str__(self) -> str:
        rows = [self.head, *self.rows] if self.head else list(self.rows)
        lines = [[_cell(value) for value in row] for row in rows]
        columns = itertools.zip_longest(*lines, fillvalue="")
        widths = [max(map(len, column)) for column in columns]
        above = [self.title] if self.title else []
        below = [line for line in self.foot if line]
        return "\n".join([*above, *(self._aligned(line, widths) for line in lines), *below])

    def _aligned(self, line: Sequence[str], widths: Sequence[int]) -> str:
        """Return the cells of one row, each as wide as its column."""
        cells = []
        for column, cell in enumerate(line):
            is_left = column in self.left
            cells.append(cell.ljust(widths[column]) if is_left else cell.rjust(widths[column]))
        return "  ".join(cells).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [self._html_row(self.head, "th")] if self.head else []
        for number, row in enumerate(self.rows):
            rows.append(self._html_row(row, "th" if number in self.bold else "td"))
        title = f"<b>{html.escape(self.title)}</b>" if self.title else ""
        below = ""
        for line in self.foot:
            text = html.escape(line)
            below += f"<div style='white-space:pre-wrap'><small>{text}</small></div>"
        return f"{title}<table>{''.join(rows)}</table>{below}{copy_buttons(self.copies)}"

    def _html_row(self, row: Sequence[object], tag: str) -> str:
        cells = ""
        for column, value in enumerate(row):
            side = "left" if column in self.left else "right"
            cells += f"<{tag} style='text-align:{side}'>{html.escape(_cell(value))}</{tag}>"
        return f"<tr>{cells}</tr>"


def copy_buttons(copies: Mapping[str, str]) -> str:
    """Return the HTML of a button for each {what: text to copy}."""
    buttons = ""
    for what, text in copies.items():
        if text:
            attributes = f"data-text='{html.escape(text)}' onclick='{COPY}'"
            buttons += f"<button {attributes}>copy as {what}</button> "
    return buttons


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


class Result:
    """The base of what comes out: it prints as its table."""

    def table(self) -> Table:
        """Return what is printed; every subclass has its own."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return everything in it as JSON types: of a dataclass, its fields."""
        if not is_dataclass(self):
            raise NotImplementedError
        return asdict(self)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def printable(text: str) -> str:
    """Return `text` with every character that a terminal might obey as its escape: "\\x1b"."""
    return STEERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def but(changes: Mapping[str, object]) -> str:
    """Return changed knobs as they are typed."""
    return f"pipeline.but({', '.join(f'{name}={value!r}' for name, value in changes.items())})"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return names as a list in words: "a, b and c"; of many the first, and how many more."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def percent(share: float | None) -> str | None:
    """Return a share in two digits: 26%, 5.6%; None of None."""
    if share is None:
        return None
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def noise(spread: float, what: str = "throughput") -> str:
    """Return what is said of a measurement whose `spread` (IQR over median) is above NOISY."""
    return f"NOISY: {what} varied by {spread:.0%} (IQR/median)"
