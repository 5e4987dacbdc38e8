"""The base of every result: it prints as a table, draws itself, and becomes JSON types."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from labkit.results.templates import template


@dataclass(frozen=True)
class Table:
    """Rows of cells, with a head, and lines of text above and below; None shows as "-".

    Columns in `left` are aligned left, all others right; rows in `bold` stand out. A notebook has
    a button that puts `code`, of PyTorch, on the clipboard.
    """

    rows: Sequence[Sequence[object]]
    head: Sequence[str] = ()
    title: str = ""
    foot: Sequence[str] = ()
    left: Collection[int] = (0,)
    bold: Collection[int] = ()
    code: str = ""

    def __str__(self) -> str:
        rows = [self.head, *self.rows] if self.head else self.rows
        cells = [["-" if value is None else str(value) for value in row] for row in rows]
        columns = itertools.zip_longest(*cells, fillvalue="")
        looks = [
            f"{'<' if place in self.left else '>'}{max(map(len, column))}"
            for place, column in enumerate(columns)
        ]
        lines = ["  ".join(map(format, row, looks)).rstrip() for row in cells]
        return "\n".join(filter(None, [self.title, *lines, *self.foot]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return template("table.html").render(vars(self))


class Result:
    """The base of every result: it prints as its table."""

    def table(self) -> Table:
        """Return what is printed; every subclass has its own."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, object]:
        """Return everything in it as JSON types: of a dataclass, its fields."""
        return asdict(cast("Any", self))

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
