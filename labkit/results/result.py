"""The base of every result: it prints as a table, draws itself, and becomes JSON types."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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

    rows: Sequence[Sequence[Any]]
    head: Sequence[str] = ()
    title: str = ""
    foot: Sequence[str] = ()
    left: Collection[int] = (0,)
    bold: Collection[int] = ()
    copies: Mapping[str, str] = field(default_factory=dict)  # {"PyTorch": what to type}

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
        def row(cells: Sequence[Any], tag: str) -> str:
            sides = ["left" if c in self.left else "right" for c in range(len(cells))]
            shown = (
                f"<{tag} style='text-align:{html.escape(side)}'>{html.escape(_cell(cell))}</{tag}>"
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{''.join(shown)}</tr>"

        lines = [row(self.head, "th")] if self.head else []
        lines += [row(cells, "th" if n in self.bold else "td") for n, cells in enumerate(self.rows)]
        title = f"<b>{html.escape(self.title)}</b>" if self.title else ""
        below = "".join(
            f"<div style='white-space:pre-wrap'><small>{html.escape(line)}</small></div>"
            for line in self.foot
        )
        return f"{title}<table>{''.join(lines)}</table>{below}{copy_buttons(self.copies)}"


def copy_buttons(copies: Mapping[str, str]) -> str:
    """Return the HTML of a button for each {what: text to copy}."""
    return "".join(
        f"<button data-text='{html.escape(text)}' onclick='{COPY}'>copy as {what}</button> "
        for what, text in copies.items()
        if text
    )


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


class Result:
    """The base of what comes out: it prints as its table."""

    def table(self) -> Table:
        """Return what is printed; every subclass has its own."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return everything in it as JSON types: of a dataclass, its fields."""
        return asdict(self)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def printable(text: str) -> str:
    """Return `text` with every character that a terminal might obey as its escape: "\\x1b"."""
    return STEERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def but(changes: Mapping[str, Any]) -> str:
    """Return changed knobs as they are typed."""
    return f"pipeline.but({', '.join(f'{name}={value!r}' for name, value in changes.items())})"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return names as a list in words: "a, b and c"; of many the first, and how many more."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def percent(share: float | None) -> str | None:
    """Return a share in two digits: 26%, 5.6%; None of None."""
    return share if share is None else f"{share:.{0 if share >= 0.0995 else 1}%}"


def noise(spread: float, what: str = "throughput") -> str:
    """Return what is said of a measurement whose `spread` (IQR over median) is above NOISY."""
    return f"NOISY: {what} varied by {spread:.0%} (IQR/median)"
