"""What a panel says of a run, in sentences."""

from __future__ import annotations

from labkit.diagnosis.findings import gain_without
from labkit.diagnosis.verdict import Diagnosis
from labkit.results.run import Run
from labkit.view.controls import shown
from labkit.view.run_header import busy_of


def run_verdict(run: Run) -> str:
    """Say how busy the device was, what limits the run, and from which step its loss is NaN."""
    gone = [] if run.watched else [step for step, loss in enumerate(run.loss) if loss != loss]
    nan = f" The loss is NaN from step {gone[0]} on: see notebook 05." if gone else ""
    found = run.diagnose()
    return f"{busy_of(run)}. {found}{_headroom(run, found)}{nan}"


def _headroom(run: Run, found: Diagnosis) -> str:
    """Say what the loop would do if it never waited for data, at the pace of its steps now."""
    if found.bottleneck != "input" or not run.throughput:
        return ""
    perfect = run.throughput * gain_without(found.findings[0].lost_share)
    return f"\nWith a perfect loader: about {perfect:,.0f} samples/s."


def difference(run: Run, before: Run | None) -> list[str]:
    """Say what was changed, what it brought, and what could not be applied."""
    lines = [f"{knob} was not applied: {why}." for knob, why in run.not_applied.items()]
    if before is None:
        return lines
    old = before.asked.to_dict()
    moved = []
    for knob, value in run.asked.to_dict().items():
        if value != old[knob]:
            moved.append(f"{knob} {shown(old[knob])} → {shown(value)}")
    what = ", ".join(moved) or "nothing changed"
    busy = f"{run.machine.kind.upper()} busy {before.busy_text} → {run.busy_text}"
    return [f"Against the run before ({what}): {busy}. {run.compare(before).verdict}", *lines]
