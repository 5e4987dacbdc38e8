"""The lines above the figure of an experiment: what was measured, how, and on which machine."""

from __future__ import annotations

from typing import Any

from labkit.experiments import EXPERIMENTS
from labkit.results.measurements import Measurements
from labkit.show.run_header import LOUD, Line, several_header
from labkit.show.style import BEFORE


def measured_header(
    measured: Measurements, before: Measurements | None = None, *texts: str, title: str = ""
) -> list[Line]:
    """Return the header: the title (or the experiment's help), parameters, machines, warnings."""
    listed = EXPERIMENTS.get(measured.name)
    title = title or (listed.help if listed else measured.name)
    params = case_of({n: v for n, v in measured.params.items() if v is not None})
    line = "; ".join(filter(None, [params, *texts]))
    runs = [run for run in (measured, before) if run is not None]
    lines = several_header(title, [line], runs)
    if before is not None:
        old, now = before.params, measured.params
        differs = {name: value for name, value in old.items() if now.get(name) != value}
        mark = f"{before.mark}, " if before.recorded else ""
        lines.append((f"before (grey): {mark}{case_of(differs) or 'the same values'}",
                      {"color": BEFORE}))  # fmt: skip
    noisy = sum(point.noisy for point in measured)
    if noisy:
        lines.append((f"NOISY: {noisy} of {len(measured)} points spread more than a tenth", LOUD))
    if measured.outcome != "finished":
        lines.append((f"{measured.outcome}: {measured.error or 'not complete'}", LOUD))
    lines += [(f"not measured: {what}: {why}", {}) for what, why in measured.skipped.items()]
    return lines


def case_of(values: dict[str, Any]) -> str:
    """Write parameters as text: n=64, count=1000."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: Any) -> str:
    if value is True or value is False:
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
