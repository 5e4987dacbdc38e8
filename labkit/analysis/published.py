"""Other people's measurements on real GPUs, as data: `lk.published()` lists them.

A dataset is an entry of data/published.json: who measured what on which hardware, the rows, and
what its figure shows. None of it was measured here; a figure that shows both marks each.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.analysis.knee import Knee, fit
from labkit.results.result import Result, Table
from labkit.results.shipped import DATA, Listing, entries, entry


@dataclass(frozen=True, repr=False)
class Published(Result):
    """Numbers that others measured: `rows`, a dict each, with the units in the columns' names."""

    name: str
    title: str
    hardware: str
    measured: str
    lesson: str  # the notebooks that show it
    repository: str
    commit: str
    path: str
    licence: str
    date: str
    message: str  # what its figure says
    figure: dict[str, Any]  # see `labkit.show.published_figure`
    rows: tuple[dict[str, Any], ...]
    note: str = ""
    shown: dict[str, Any] = field(default_factory=dict)  # the rows of the table and figure
    line: Any = ()  # columns of batch and time, and samples an epoch where that is it

    HEAD = ("name", "what others measured", "hardware", "lesson", "licence")
    row = property(lambda p: (p.name, p.title, p.hardware, p.lesson, p.licence))

    @property
    def source(self) -> str:
        """Where the numbers are from, at the commit they were read from."""
        return f"https://github.com/{self.repository}/tree/{self.commit}/{self.path}"

    def where(self, **case: Any) -> list[dict[str, Any]]:
        """Return the rows with these values; ValueError names an unknown column or value."""
        found = list(self.rows)
        for name, value in case.items():
            known = list(dict.fromkeys(row.get(name) for row in self.rows))
            if value not in known:
                said = f"Unknown column {name!r}; available: {', '.join(self.rows[0])}."
                if known != [None]:
                    said = f"No row with {name}={value!r}; there are {known}."
                raise ValueError(f"{self.name}: {said}")
            found = [row for row in found if row[name] == value]
        return found

    def knee(self, **case: Any) -> Knee:
        """Fit t = a + b x batch to the times of one card, as `lk.knee` does to a sweep.

        `case` picks the card, as in card="V100"; of an epoch's time a step has its share.
        """
        if not self.line:
            raise ValueError(f"{self.name}: no times by batch size; try lk.published('inference').")
        batch, time, samples = self.line
        rows = sorted(self.where(**{**self.shown, **case}), key=lambda row: row[batch])
        if len({row[batch] for row in rows}) < len(rows):
            several = [k for k in rows[0] if isinstance(rows[0][k], str) and k not in case]
            raise ValueError(f"{self.name}: several times for a batch; name also {several}.")
        times = [row[time] * 1e3 * row[batch] / samples if samples else row[time] for row in rows]
        what = " ".join(str(value) for value in case.values())
        found = fit([row[batch] for row in rows], times)
        return replace(found, source=f"PUBLISHED: {what}, {self.repository}")

    def table(self, **case: Any) -> Table:
        """Return the rows that are shown (`shown`, or those of `case`), with their source."""
        rows = self.where(**(case or self.shown))
        foot = (
            f"PUBLISHED: measured by others on {self.hardware}, not here ({self.date})",
            f"{self.measured}{f'; {self.note}' if self.note else ''}",
            f"{self.source} ({self.licence})",
        )
        cells = [[v if isinstance(v, str) else f"{v:,g}" for v in row.values()] for row in rows]
        words = [c for c, v in enumerate(rows[0].values()) if isinstance(v, str)]
        head = [name.replace("_", " ") for name in rows[0]]
        return Table(cells, head, self.title, foot, left=words)


def published(name: str | None = None) -> Published | Listing:
    """List other people's measurements on real GPUs, or return those called `name`."""
    if name is None:
        return Listing(_load(*each) for each in entries("published.json").items())
    return _load(name, entry("published.json", name, "measurements"))


def _load(name: str, found: dict[str, Any]) -> Published:
    columns, rows, file = (found.pop(key, None) for key in ("columns", "rows", "file"))
    if file:
        with open(DATA / file, encoding="utf-8", newline="") as text:
            columns, *rows = csv.reader(text)
        rows = [[_number(cell) for cell in row] for row in rows]
    rows = tuple(dict(zip(columns, row, strict=True)) for row in rows)
    return Published(name, **found, rows=rows)


def _number(cell: str) -> str | int | float:
    try:
        return int(cell) if cell.isdigit() else float(cell)
    except ValueError:
        return cell
