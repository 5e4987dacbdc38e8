"""The base of every result: it prints as a table, draws itself, and becomes JSON types."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from labkit.knobs import as_typed
from labkit.results.templates import template

# What may steer a terminal, hide text or turn its direction, and what no terminal can show
STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
LISTED = 3  # names in a sentence


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
        return template("table.html").render(vars(self))


def copy_buttons(copies: Mapping[str, str]) -> str:
    """Return the HTML of a button for each {what: text to copy}."""
    return template("buttons.html").render(copies=copies)


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


class Result:
    """The base of every result: it prints as its table."""

    def table(self) -> Table:
        """Return what is printed; every subclass has its own."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, object]:
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


def with_texts(value: Any, change: Callable[[str], str], of_key: Callable[[str], str]) -> Any:
    """Return a value of JSON with every text in it changed, and every key of a dict by `of_key`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(each, change, of_key) for each in value]
    if isinstance(value, dict):
        return {of_key(key): with_texts(each, change, of_key) for key, each in value.items()}
    return value


def but_call(changes: Mapping[str, object]) -> str:
    """Return what makes these changes to a pipeline, as it is typed."""
    return f"pipeline.but({as_typed(changes)})"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words: "a, b and c"; of many the first, and how many more."""
    shown = list(names[:LISTED])
    if len(names) > LISTED:
        shown.append(f"{len(names) - LISTED} more")
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def percent(share: float | None) -> str | None:
    """Return a share in two digits: 26%, 5.6%; None of None."""
    if share is None:
        return None
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def noise(spread: float) -> str:
    """Return what is said of a measurement whose `spread` (IQR over median) is above NOISY."""
    return f"NOISY: throughput varied by {spread:.0%} (IQR/median)"
