"""What limits a verdict, in words: what had a part in a run's times, and what nothing saw."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.results.run import Run
from labkit.results.text import listed


def caveats(evidence: Evidence, run: Run, seconds: float) -> tuple[str, ...]:
    """Say what else had a part in the times of a run of which `seconds` were measured."""
    said = []
    if evidence.is_disturbed:
        taken = f"had the model's core for {evidence.stolen_by_others:.0%} of the time"
        use = evidence.use
        if use.others_share > limits.DISTURBS:
            named = f": {listed(run.beside)}" if run.beside else ""
            taken = f"used {use.others:.1f} of {use.cores} cores meanwhile{named}"
        said.append(f"Other programs {taken}.")
    if evidence.kind == "gpu" and run.on_the_card:
        said.append(f"Other programs were on the same GPU: {listed(run.on_the_card)}.")
    if evidence.spare_card:
        said.append(f"The model is on the CPU, and does not use the {evidence.spare_card}.")
    if run.is_cut_short:
        said.append(f"The verdict is of the first {run.steps:,} steps: no more are recorded.")
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        said.append(f"A short look: {longer}")
    return tuple(said)


def not_seen(evidence: Evidence) -> list[str]:
    """Return notes on what no instrument saw of the device."""
    notes = []
    if evidence.could_look and not evidence.looked_inside:
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    elif evidence.xray and evidence.kind == "gpu" and evidence.kernels is None:
        notes.append("The x-ray holds no device activity: gaps between kernels were not seen.")
    if evidence.gaps_may_hide:
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    if evidence.launches_only:
        notes.append("The device was not timed: it may work while the loop waits for data.")
    return notes
