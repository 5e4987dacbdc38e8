"""Who had the machine's cores while a run trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.results.run_data import RunData


@dataclass(frozen=True)
class CoreUse:
    """Cores, on average over the time in which a run trained. None: not recorded."""

    cores: int | None = None  # that the run may use
    own: float | None = None  # that it used
    others: float | None = None  # of its cores, that other programs used
    waiting: float | None = None  # threads of the run that waited for a core

    @property
    def others_share(self) -> float:
        """The part of the run's cores that other programs used, 0 to 1."""
        return (self.others or 0.0) / (self.cores or 1)

    @property
    def taken(self) -> float | None:
        """The part (0 to 1) of the time of the run's threads in which others had their cores.

        With the cores alone the run would have used as many as it had threads at work or in line.
        """
        if self.own is None or self.waiting is None:
            return None
        alone = min(self.own + self.waiting, self.cores or math.inf)
        return max(0.0, 1 - self.own / max(alone, 1e-9))

    @classmethod
    def of(cls, run: RunData, ranks_cores: float = 0.0) -> CoreUse:
        """Return what was recorded of a run; other ranks of the same job used `ranks_cores`."""
        cores = run.machine.cpu_cores
        own, everyone, waiting, here = map(run.mean_reading, ("own_cpu", "cpu", "line_cpu", "cpus"))
        if own is None or everyone is None or not here:
            return cls(cores)
        spare = max(0.0, here - (cores or here))  # who is on cores beyond the run's takes nothing
        others = max(0.0, (everyone - own) * here - spare - ranks_cores)
        return cls(cores, own * here, others, waiting and waiting * here)
