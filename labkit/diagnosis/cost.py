"""The cost of a run: energy, money and carbon, per sample and epoch, and the idle part of it.

Energy is the device's own, from its counter; None without one, as is all that follows from it.
"""

from __future__ import annotations

import math

import numpy as np

from labkit.results.result import Result, Table
from labkit.results.run_data import RunData

# The world's average electricity in 2024, life cycle, CO2 equivalents (Ember, Global Electricity
# Review 2025). Grids range from about 0.05 to 0.7
KG_CO2_PER_KWH = 0.473
SAMPLES_PER_EPOCH = 1_281_167  # the training images of ImageNet-1k (ILSVRC 2012)
ROWS = {  # of the table: what it is called, by the attribute, with its unit
    "usd_per_hour": "rent, USD/h (give usd_per_hour)",
    "kg_co2_per_kwh": "grid, kg CO2e/kWh",
    "hours_per_epoch": "time, h",
    "usd_per_epoch": "rent, USD",
    "idle_usd_per_epoch": "  of it for an idle device, USD",
    "kwh_per_epoch": "energy, kWh",
    "kg_co2_per_epoch": "carbon, kg CO2e",
    "joules_per_sample": "energy of a sample, J",
}


class Cost(Result):
    """The cost of a run: per sample, per epoch, and while its device is idle.

    Numbers that need something which was not measured or given are None.
    """

    def __init__(
        self,
        run: RunData,
        *,
        usd_per_hour: float | None = None,
        kg_co2_per_kwh: float = KG_CO2_PER_KWH,
        before: RunData | None = None,
    ):
        """Take a run, and one to compare it with, `before`, at the same prices.

        `usd_per_hour` is what the machine rents for; the grid is by default the world's average, an
        epoch ImageNet's. ValueError: a price below 0 or not finite, or a run without numbers.
        """
        given = {"usd_per_hour": usd_per_hour, "kg_co2_per_kwh": kg_co2_per_kwh}
        for name, value in given.items():
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r} is not allowed: use a number of 0 or more")
        if not run.throughput:
            raise ValueError(f"{run!r}: a run without numbers has no cost.")
        self.title = f"An epoch of {SAMPLES_PER_EPOCH:,} {run.unit}, {run.mark or run.machine.name}"
        self.before = before and Cost(before, **given)
        watts = mean_watts(run)
        self.usd_per_hour = usd_per_hour
        self.kg_co2_per_kwh = kg_co2_per_kwh
        self.watts = watts  # mean power while training, from the energy counter
        self.hours_per_epoch = hours = SAMPLES_PER_EPOCH / run.throughput / 3600
        self.usd_per_epoch = usd = usd_per_hour and usd_per_hour * hours
        self.idle_usd_per_epoch = usd and run.utilization and usd * (1 - run.utilization)
        self.kwh_per_epoch = kwh = watts and watts * hours / 1e3
        self.kg_co2_per_epoch = kwh and kwh * kg_co2_per_kwh
        self.joules_per_sample = watts and watts / run.throughput

    def to_dict(self) -> dict[str, object]:
        """Return the costs as JSON types."""
        return {**vars(self), "before": self.before and self.before.to_dict()}

    def table(self) -> Table:
        """Return the costs of an epoch and a sample, beside those of the run before."""
        shown = {"before": self.before, "now": self} if self.before else {"now": self}
        rows = []
        for name, label in ROWS.items():
            values = [getattr(each, name) for each in shown.values()]
            rows.append([label, *(value and f"{value:,.4g}" for value in values)])
        foot = "energy was not measured: no readable counter, so no joules and no carbon"
        return Table(rows, ("", *shown), self.title, [foot] if self.watts is None else [])


cost = Cost


def mean_watts(run: RunData) -> float | None:
    """Return mean power after the warm-up, by the card's energy counter; None: hardly read."""
    moments, joules = run.readings("energy_j", run.warm_s)
    known = np.isfinite(joules)
    if known.sum() < 2:
        return None
    return float(np.ptp(joules[known]) / np.ptp(moments[known])) or None
