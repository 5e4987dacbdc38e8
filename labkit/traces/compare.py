"""What changed from one trace to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.results.result import Result, Table

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from labkit.traces.breakdown import Breakdown

LISTED = 6  # kernels and operators that changed most


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

    def changes(self) -> dict[str, pandas.DataFrame]:
        """Return what changed: all `classes`; the `kernels` and `operators` that did most.

        By name, what each takes of an average step before and after.
        """
        import pandas

        before = {"classes": self.before.class_us} | self.before.detail
        after = {"classes": self.after.class_us} | self.after.detail
        found = {}
        for what in ("classes", "kernels", "operators"):
            took = {"before_us": before.get(what, {}), "after_us": after.get(what, {})}
            table = pandas.DataFrame(took, index=[*(took["before_us"] | took["after_us"])]).fillna(
                0.0
            )
            table["change_us"] = table["after_us"] - table["before_us"]
            table["before_share"] = table["before_us"] / self.before.step_us
            table["after_share"] = table["after_us"] / self.after.step_us
            if what != "classes":
                most = table["change_us"].abs().sort_values(ascending=False, kind="stable")
                table = table.loc[most.index[:LISTED]]
            found[what] = table
        return found

    def to_dict(self) -> dict[str, object]:
        """Return µs and shares of a step: of all classes, and of what changed most."""
        found: dict[str, object] = {"before": self.before.source, "after": self.after.source}
        for key in ("step_us", "utilization", "steps"):
            found[f"before_{key}"] = getattr(self.before, key)
            found[f"after_{key}"] = getattr(self.after, key)
        for what, table in self.changes().items():
            found[what] = table.rename_axis("name").reset_index().to_dict("records")
        return found

    def table(self) -> Table:
        """Return the classes, then the kernels and operators that changed most."""
        rows = []
        for what, table in self.changes().items():
            label = "" if what == "classes" else f"{what[:-1]} "
            for name, change in table.iterrows():
                times_ms = [f"{each / 1000:,.2f}" for each in change[["before_us", "after_us"]]]
                shares = [f"{each:.1%}" for each in change[["before_share", "after_share"]]]
                changed = f"{change.change_us / 1000:+,.2f}"
                rows.append((f"{label}{str(name)[:60]}", *times_ms, changed, *shares))
        head = ("of a step", "ms before", "ms after", "change", "before", "after")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        foot = ("kernels: time on the device; operators: the host's, without those inside them",)
        return Table(rows, head, title, foot)
