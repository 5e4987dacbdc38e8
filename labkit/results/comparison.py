"""Two runs side by side: what was changed, and what it brought."""

from __future__ import annotations

import html
from typing import Any

NAMES = ("throughput", "utilization", "step_ms", "wait_ms", "copy_ms", "compute_ms")


class Comparison:
    """`after` against `before`; prints as a small table."""

    def __init__(self, before: Any, after: Any):
        self.before, self.after = before, after

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """{knob: (before, after)} of the knobs that differ in what really ran.

        Those that followed from another one (both were left to labkit) are not listed.
        """
        old, new = self.before.pipeline.to_dict(), self.after.pipeline.to_dict()
        asked = [run.asked.to_dict() for run in (self.before, self.after)]
        differ = [name for name in old if old[name] != new[name]]
        own = [name for name in differ if any(knobs[name] is not None for knobs in asked)]
        return {name: (old[name], new[name]) for name in own}

    @property
    def speedup(self) -> float | None:
        """Throughput after over before; None where either has none."""
        old, new = self.before.throughput, self.after.throughput
        return new / old if old and new else None

    @property
    def significant(self) -> bool:
        """Whether the difference is larger than the two runs' own unevenness."""
        noise = max(self.before.spread or 0.0, self.after.spread or 0.0, 0.02)
        return self.speedup is not None and abs(self.speedup - 1) > noise

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table: (what, before, after, ratio), every cell as text."""
        rows = [(name, repr(old), repr(new), "") for name, (old, new) in self.changed.items()]
        for name in NAMES:
            old, new = getattr(self.before, name), getattr(self.after, name)
            ratio = f"{new / old:.2f}x" if old and new else ""
            texts = (_text(name, run) for run in (self.before, self.after))
            rows.append((name, *texts, ratio))
        return rows

    @property
    def verdict(self) -> str:
        """One sentence on what the change brought."""
        if self.speedup is None:
            return "One of the runs has no numbers to compare."
        where = {r.machine.name for r in (self.before, self.after) if r.recorded}
        mark = f" RECORDED numbers are from {', '.join(sorted(where))}." if where else ""
        if not self.significant:
            return f"No difference beyond the noise ({self.speedup:.2f}x).{mark}"
        word = "faster" if self.speedup > 1 else "slower"
        return f"{max(self.speedup, 1 / self.speedup):.2f}x {word}.{mark}"

    def __repr__(self) -> str:
        lines = [f"{'':14}{'before':>12}{'after':>12}{'ratio':>9}"]
        lines += [f"{a:14}{b:>12}{c:>12}{d:>9}" for a, b, c, d in self.rows()]
        return "\n".join([*lines, self.verdict])

    def _repr_html_(self) -> str:
        def row(cells: tuple, tag: str = "td") -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        head = row(("", "before", "after", "ratio"), "th")
        body = "".join(map(row, self.rows()))
        return f"<table>{head}{body}</table><p>{html.escape(self.verdict)}</p>"


def _text(name: str, run: Any) -> str:
    value = getattr(run, name)
    if value is None:
        return "-"
    return run.busy_text if name == "utilization" else f"{value:.1f}"
