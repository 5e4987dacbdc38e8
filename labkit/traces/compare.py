"""What changed from one trace to another."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from labkit.results.result import Result, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.traces.breakdown import Breakdown

LISTED = 6  # kernels and operators that changed most


@dataclass(frozen=True)
class Change:
    """What a class, kernel or operator takes of an average step, before and after."""

    name: str
    before_us: float
    after_us: float
    change_us: float
    before_share: float
    after_share: float


@dataclass(frozen=True, repr=False)
class TraceComparison(Result):
    """What changed from one trace to another, in an average step (without marks: the window)."""

    before: Breakdown
    after: Breakdown

    @property
    def headline(self) -> str:
        """Say how the step and its busy share changed."""
        before = self.before
        after = self.after
        times = f"{before.step_us / 1000:,.1f} -> {after.step_us / 1000:,.1f} ms"
        busy = f"{before.utilization:.1%} -> {after.utilization:.1%} busy"
        return f"step {times} ({after.step_us / before.step_us - 1:+.0%}), {busy}"

    def plot(self) -> Figure:
        """Draw what changed, as bars."""
        from labkit.view.analysis_figures import draw_comparison

        return draw_comparison(self)

    def changes(self) -> dict[str, list[Change]]:
        """Return what changed: all `classes`; the `kernels` and `operators` that did most."""
        before = {"classes": self.before.class_us} | self.before.detail
        after = {"classes": self.after.class_us} | self.after.detail
        found = {}
        for what in ("classes", "kernels", "operators"):
            found[what] = self._changes(before.get(what, {}), after.get(what, {}))
            if what != "classes":
                found[what].sort(key=lambda change: -abs(change.change_us))
                del found[what][LISTED:]
        return found

    def _changes(self, before: dict[str, float], after: dict[str, float]) -> list[Change]:
        changes = []
        for name in before | after:
            before_us = before.get(name, 0.0)
            after_us = after.get(name, 0.0)
            shares = (before_us / self.before.step_us, after_us / self.after.step_us)
            changes.append(Change(name, before_us, after_us, after_us - before_us, *shares))
        return changes

    def to_dict(self) -> dict[str, object]:
        """Return µs and shares of a step: of all classes, and of what changed most."""
        found: dict[str, object] = {"before": self.before.source, "after": self.after.source}
        for key in ("step_us", "utilization", "steps"):
            found[f"before_{key}"] = getattr(self.before, key)
            found[f"after_{key}"] = getattr(self.after, key)
        for what, changes in self.changes().items():
            found[what] = [asdict(change) for change in changes]
        return found

    def table(self) -> Table:
        """Return the classes, then the kernels and operators that changed most."""
        rows = []
        for what, changes in self.changes().items():
            label = "" if what == "classes" else f"{what[:-1]} "
            for change in changes:
                times_ms = f"{change.before_us / 1000:,.2f}", f"{change.after_us / 1000:,.2f}"
                shares = f"{change.before_share:.1%}", f"{change.after_share:.1%}"
                changed = f"{change.change_us / 1000:+,.2f}"
                rows.append((label + change.name[:60], *times_ms, changed, *shares))
        head = ("of a step", "ms before", "ms after", "change", "before", "after")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        foot = ("kernels: time on the device; operators: the host's, without those inside them",)
        return Table(rows, head, title, foot)
