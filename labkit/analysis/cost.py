"""What a run costs: energy, money and carbon, per sample and per epoch, and the idle part of it.

Energy comes from the device's own counter, as the record has it, and is None without one; so is
all that follows from it. Money and carbon come from a price and a grid intensity that are the
reader's to set; the defaults and their sources stand in `labkit.analysis.prices`.

The energy is the device's alone: not the host's, the memory's or the cooling's.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

from labkit.analysis.energy import power
from labkit.analysis.prices import KG_CO2_PER_KWH, SAMPLES_PER_EPOCH, usual_rent

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Cost:
    """What a run costs. Numbers that need something which was not measured or given are None.

    Attributes:
        machine: The name of the device.
        recorded: Whether the run was replayed from a record.
        unit: What a sample is: "samples", or "batches" of a watched loop that hides its own.
        seconds_per_sample: Wall time, warm-up excluded.
        watts: Mean power while training, from the energy counter.
        idle_share: Share of the time in which the device was idle, 0 to 1.
        idle_energy_share: Share of the energy spent then. Power is taken as constant between two
            readings of the counter (0.2 s); an idle device draws less than a busy one, so where
            idle and busy alternate faster than that this is an upper bound.
        samples_per_epoch: Samples in an epoch.
        usd_per_hour: Rent of the device.
        usd_per_kwh: Price of electricity, for hardware of one's own.
        kg_co2_per_kwh: Carbon intensity of the grid, CO2 equivalents.
        before: The run that this one is compared with.
    """

    machine: str
    recorded: bool
    unit: str
    seconds_per_sample: float
    watts: float | None
    idle_share: float
    idle_energy_share: float | None
    samples_per_epoch: int
    usd_per_hour: float | None
    usd_per_kwh: float | None
    kg_co2_per_kwh: float
    before: Cost | None = None

    @property
    def joules_per_sample(self) -> float | None:
        """Energy of the device for one sample, J."""
        return _times(self.watts, self.seconds_per_sample)

    @property
    def hours_per_epoch(self) -> float:
        """Wall time of an epoch, h."""
        return self.samples_per_epoch * self.seconds_per_sample / 3600

    @property
    def kwh_per_epoch(self) -> float | None:
        """Energy of the device for an epoch, kWh."""
        return _times(self.joules_per_sample, self.samples_per_epoch / J_PER_KWH)

    @property
    def usd_per_epoch(self) -> float | None:
        """Rent of the device for an epoch, USD."""
        return _times(self.hours_per_epoch, self.usd_per_hour)

    @property
    def electricity_usd_per_epoch(self) -> float | None:
        """Electricity of the device for an epoch, USD. Part of the rent where it is rented."""
        return _times(self.kwh_per_epoch, self.usd_per_kwh)

    @property
    def kg_co2_per_epoch(self) -> float | None:
        """Carbon of that electricity, kg of CO2 equivalents."""
        return _times(self.kwh_per_epoch, self.kg_co2_per_kwh)

    @property
    def idle_usd_per_epoch(self) -> float | None:
        """Rent paid for an idle device, USD."""
        return _times(self.usd_per_epoch, self.idle_share)

    @property
    def idle_kwh_per_epoch(self) -> float | None:
        """Energy of the idle device for an epoch, kWh."""
        return _times(self.kwh_per_epoch, self.idle_energy_share)

    @property
    def idle_kg_co2_per_epoch(self) -> float | None:
        """Carbon of the idle device for an epoch, kg of CO2 equivalents."""
        return _times(self.kg_co2_per_epoch, self.idle_energy_share)

    @property
    def idle_joules_per_sample(self) -> float | None:
        """Energy of the idle device for one sample, J."""
        return _times(self.joules_per_sample, self.idle_energy_share)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        given = ("machine", "recorded", "unit", "seconds_per_sample", "watts", "idle_share",
                 "idle_energy_share", "samples_per_epoch", "usd_per_hour", "usd_per_kwh",
                 "kg_co2_per_kwh")  # fmt: skip
        values = {name: getattr(self, name) for name in (*given, *(name for _, name, _ in ROWS))}
        return values | {"before": self.before and self.before.to_dict()}

    # -- as a table ------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What the table is of, and where it was measured."""
        mark = "RECORDED on " if self.recorded else ""
        return f"An epoch of {self.samples_per_epoch:,} {self.unit} on {mark}{self.machine}"

    @property
    def foot(self) -> str:
        """The prices, and why there are gaps."""
        rent = "unknown: give usd_per_hour" if self.usd_per_hour is None else _text(
            self.usd_per_hour, "USD/h"
        )  # fmt: skip
        parts = [f"rent {rent}", f"grid {self.kg_co2_per_kwh:g} kg CO2e/kWh"]
        if self.usd_per_kwh is not None:
            parts.append(f"electricity {self.usd_per_kwh:g} USD/kWh")
        if self.watts is None:
            parts.append("energy was not measured: no readable counter, so no joules and no carbon")
        return "; ".join(parts)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: (what, before, now, ratio), or (what, now) where there is nothing before."""
        rows = []
        for label, name, unit in ROWS:
            now = getattr(self, name)
            old = None if self.before is None else getattr(self.before, name)
            if name == "electricity_usd_per_epoch" and self.usd_per_kwh is None:
                continue
            if label.startswith(" ") and now is None and old is None:
                continue  # the gap is in the line above
            if self.before is None:
                rows.append((label, _text(now, unit)))
                continue
            ratio = f"{now / old:.3g}x" if old and now is not None else "-"
            rows.append((label, _text(old, unit), _text(now, unit), ratio))
        return rows

    def __repr__(self) -> str:
        head = ("", "now") if self.before is None else ("", "before", "now", "ratio")
        rows = [head, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, *lines, self.foot])

    def _repr_html_(self) -> str:
        head = ("", "now") if self.before is None else ("", "before", "now", "ratio")
        body = "".join(_html_row(row, "td") for row in self.rows())
        return (
            f"<div style='max-width:860px'><b>{html.escape(self.title)}</b>"
            f"<table>{_html_row(head, 'th')}{body}</table>"
            f"<small>{html.escape(self.foot)}</small></div>"
        )


ROWS = (
    ("time", "hours_per_epoch", "h"),
    ("rent", "usd_per_epoch", "USD"),
    ("  of it for an idle device", "idle_usd_per_epoch", "USD"),
    ("energy", "kwh_per_epoch", "kWh"),
    ("  of it while idle", "idle_kwh_per_epoch", "kWh"),
    ("electricity", "electricity_usd_per_epoch", "USD"),
    ("carbon", "kg_co2_per_epoch", "kg CO2e"),
    ("  of it while idle", "idle_kg_co2_per_epoch", "kg CO2e"),
    ("energy of a sample", "joules_per_sample", "J"),
    ("  of it while idle", "idle_joules_per_sample", "J"),
)


def cost(
    run: Any,
    *,
    usd_per_hour: float | None = None,
    usd_per_kwh: float | None = None,
    kg_co2_per_kwh: float | None = None,
    samples_per_epoch: int | None = None,
    before: Any = None,
) -> Cost:
    """Say what a run costs in energy, money and carbon: per sample, per epoch, and while idle.

    Args:
        run: A Run.
        usd_per_hour: Rent of the device; None takes the default for its name, where there is one.
        usd_per_kwh: Price of electricity, for hardware of your own; None leaves it out.
        kg_co2_per_kwh: Carbon intensity of your grid; None takes the world's average.
        samples_per_epoch: Samples in an epoch of your training; None takes ImageNet's.
        before: The Run to compare with, at the same prices.

    The defaults and their sources stand in `labkit.analysis.prices`.

    Raises:
        ValueError: A price below 0 or not finite, or a run without numbers.
    """
    given = {"usd_per_hour": usd_per_hour, "usd_per_kwh": usd_per_kwh,
             "kg_co2_per_kwh": kg_co2_per_kwh, "samples_per_epoch": samples_per_epoch}  # fmt: skip
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(
                f"{name}={value!r} is not allowed: use a number of 0 or more, or None."
            )
    if not run.throughput:
        raise ValueError(f"{run!r}: a run without numbers has no cost.")
    watts, idle_energy_share = power(run)
    return Cost(
        machine=run.machine.name,
        recorded=run.recorded,
        unit=run.unit,
        seconds_per_sample=1 / run.throughput,
        watts=watts,
        idle_share=1 - run.utilization,
        idle_energy_share=idle_energy_share,
        samples_per_epoch=SAMPLES_PER_EPOCH if samples_per_epoch is None else samples_per_epoch,
        usd_per_hour=usual_rent(run.machine) if usd_per_hour is None else usd_per_hour,
        usd_per_kwh=usd_per_kwh,
        kg_co2_per_kwh=KG_CO2_PER_KWH if kg_co2_per_kwh is None else kg_co2_per_kwh,
        before=None if before is None else cost(before, **given),
    )


def _times(value: float | None, by: float | None) -> float | None:
    return None if value is None or by is None else value * by


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{min(digits, 9)}f} {unit}"


def _html_row(cells: tuple[str, ...], tag: str) -> str:
    styles = ["text-align:left;padding:2px 12px 2px 0;white-space:pre"]
    styles += ["text-align:right;padding:2px 8px;white-space:nowrap"] * (len(cells) - 1)
    return "<tr>" + "".join(
        f"<{tag} style='{style}'>{html.escape(cell)}</{tag}>"
        for cell, style in zip(cells, styles, strict=True)
    ) + "</tr>"  # fmt: skip
