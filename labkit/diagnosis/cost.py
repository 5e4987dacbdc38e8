"""The cost of a run: energy, money and carbon, per sample and epoch, and the idle part of it.

Energy is the device's own, from its counter; None without one, as is all that follows from it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from labkit.diagnosis import power
from labkit.results.hardware import Machine
from labkit.results.result import Result, Table
from labkit.results.run import Run

# What a device rents for at Amazon, USD/h. GPUs: "EC2 Capacity Blocks for ML", effective rate per
# accelerator, list of the end of 2024; A10G: g5.xlarge on demand, us-east-1, June 2026. A CPU core:
# half of m7g.large (two vCPUs), the same. Other cards have no default. A rent includes electricity.
USD_PER_HOUR = {"H200": 5.408, "H100": 4.916, "A100": 1.844, "A10G": 1.006}
USD_PER_CORE_HOUR = 0.0816 / 2
# The world's average electricity in 2024, life cycle, CO2 equivalents (Ember, Global Electricity
# Review 2025). Grids range from about 0.05 to 0.7
KG_CO2_PER_KWH = 0.473
SAMPLES_PER_EPOCH = 1_281_167  # the training images of ImageNet-1k (ILSVRC 2012)
J_PER_KWH = 3.6e6


# Of the table: what it is called, the attribute, its unit
ROWS = (
    ("time", "hours_per_epoch", "h"),
    ("rent", "usd_per_epoch", "USD"),
    ("  of it for an idle device", "idle_usd_per_epoch", "USD"),
    ("energy", "kwh_per_epoch", "kWh"),
    ("  of it while idle", "idle_kwh_per_epoch", "kWh"),
    ("carbon", "kg_co2_per_epoch", "kg CO2e"),
    ("energy of a sample", "joules_per_sample", "J"),
)


@dataclass(frozen=True, repr=False)
class Cost(Result):
    """The cost of a run. Numbers that need something which was not measured or given are None."""

    source: str  # the device, and whether it is of a record
    unit: str  # "samples", or "batches" of a watched loop that hides its own
    watts: float | None  # mean power while training, from the energy counter
    # Of the energy. An upper bound where idle and busy alternate faster than the counter is read
    # (0.2 s): an idle device draws less than a busy one
    idle_energy_share: float | None
    samples_per_epoch: int
    usd_per_hour: float | None
    kg_co2_per_kwh: float
    before: Cost | None  # of the run that this one is compared with
    joules_per_sample: float | None
    hours_per_epoch: float
    kwh_per_epoch: float | None
    usd_per_epoch: float | None  # rent
    kg_co2_per_epoch: float | None
    idle_usd_per_epoch: float | None  # rent paid for an idle device
    idle_kwh_per_epoch: float | None

    def table(self) -> Table:
        """Return the costs of an epoch and a sample, beside those of the run before."""
        rows = []
        for label, name, unit in ROWS:
            now = getattr(self, name)
            old = getattr(self.before, name, None)
            ratio = _apart(now, old) if old and now else None
            cells = (_text(old, unit), _text(now, unit), ratio)
            rows.append((label, *(cells if self.before else cells[1:2])))
        rent = _text(self.usd_per_hour, "USD/h") or "unknown: give usd_per_hour"
        foot = f"rent {rent}; grid {self.kg_co2_per_kwh:g} kg CO2e/kWh"
        if self.watts is None:
            foot += "; energy was not measured: no readable counter, so no joules and no carbon"
        return Table(
            rows,
            head=("", "before", "now", "ratio") if self.before else ("", "now"),
            title=f"An epoch of {self.samples_per_epoch:,} {self.unit}{self.source}",
            foot=[self.verdict, foot],
        )

    @property
    def verdict(self) -> str:
        """What an epoch costs against before, and what to save next, in a sentence or two."""
        now = _text(self.usd_per_epoch, "USD") or _text(self.hours_per_epoch, "h")
        old = self.before.hours_per_epoch if self.before else None
        apart = f"{_apart(self.hours_per_epoch, old)} than before: " if old else ""
        said = f"An epoch costs {apart}{now}."
        if self.usd_per_epoch and self.idle_usd_per_epoch is not None:
            said += f" {self.idle_usd_per_epoch / self.usd_per_epoch:.0%} of it is for an idle "
            said += "device: what run.diagnose() names is what to save next."
        return said


def cost(
    run: Run,
    *,
    usd_per_hour: float | None = None,
    kg_co2_per_kwh: float | None = None,
    samples_per_epoch: int | None = None,
    before: Run | None = None,
) -> Cost:
    """Return what a run costs in energy, money and carbon: per sample, per epoch, and while idle.

    Rent is by default `USD_PER_HOUR` of `labkit.diagnosis.cost`, the grid the world's average, an
    epoch ImageNet's. `before` is a Run to compare with, at
    the same prices. ValueError: a price below 0 or not finite, or a run without numbers.
    """
    given = {
        "usd_per_hour": usd_per_hour,
        "kg_co2_per_kwh": kg_co2_per_kwh,
        "samples_per_epoch": samples_per_epoch,
    }
    _check(given)
    if not run.throughput:
        raise ValueError(f"{run!r}: a run without numbers has no cost.")
    rent = usual_rent(run.machine) if usd_per_hour is None else usd_per_hour
    grid = KG_CO2_PER_KWH if kg_co2_per_kwh is None else kg_co2_per_kwh
    samples = SAMPLES_PER_EPOCH if samples_per_epoch is None else samples_per_epoch
    watts, idle_energy_share = power.by_counter(run)
    seconds = 1 / run.throughput
    hours = samples * seconds / 3600
    joules = _times(watts, seconds)
    kwh = _times(joules, samples / J_PER_KWH)
    usd = _times(hours, rent)
    return Cost(
        source=f"{', RECORDED' if run.recorded else ''} on {run.machine.name}",
        unit=run.unit,
        watts=watts,
        idle_energy_share=idle_energy_share,
        samples_per_epoch=samples,
        usd_per_hour=rent,
        kg_co2_per_kwh=grid,
        before=None if before is None else cost(before, **given),
        joules_per_sample=joules,
        hours_per_epoch=hours,
        kwh_per_epoch=kwh,
        usd_per_epoch=usd,
        kg_co2_per_epoch=_times(kwh, grid),
        idle_usd_per_epoch=_times(usd, None if run.utilization is None else 1 - run.utilization),
        idle_kwh_per_epoch=_times(kwh, idle_energy_share),
    )


def _check(given: dict[str, float | int | None]) -> None:
    """Raise ValueError for a price, or a number of samples, that none can be."""
    for name, value in given.items():
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{name}={value!r} is not allowed: use a number of 0 or more, or None")


def usual_rent(machine: Machine) -> float | None:
    """Return the default rent of a device, USD/h; None for a card not listed, or a part of one."""
    if machine.kind == "cpu":
        return machine.cpu_cores and USD_PER_CORE_HOUR * machine.cpu_cores
    found = re.search(rf"\b({'|'.join(USD_PER_HOUR)})\b(?!.* MIG )", machine.name)
    return found and USD_PER_HOUR[found[1]]


def _times(value: float | None, by: float | None) -> float | None:
    return None if value is None or by is None else value * by


def _apart(now: float, old: float) -> str:
    """Say how many times as much as `old` it is now: "4.9x less", "1.2x more"."""
    return f"{old / now:.3g}x less" if now < old else f"{now / old:.3g}x more"


def _text(value: float | None, unit: str) -> str | None:
    if value is None:
        return None
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{min(digits, 9)}f} {unit}"
