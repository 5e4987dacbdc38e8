"""Where the time of every rank went: its data, its compute, the others, the exchange.

An all-reduce cannot begin to end before the last rank has all its gradients. So of the time that a
rank waits for the averaged gradients, the part up to the *last* rank's last gradient is waiting for
that rank, and what follows is the exchange itself. All ranks of one machine share a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.results.timeline import stamps_ns

PARTS = ("wait", "compute", "others", "transfer", "other")
MIN_STEPS = 2


@dataclass(frozen=True)
class RankTimes:
    """Times of the measured steps, all (ranks, steps) in s; the shares are (ranks,), 0 to 1.

    Attributes:
        ranks: The number of each rank.
        step_s: From one step's end on the device to the next.
        wait_s: Waiting for data while the device had nothing to do.
        others_s: Waiting in the exchange for a rank whose gradients were not complete yet.
        transfer_s: The exchange itself, from when all had theirs: what was not overlapped of it.
        compute_s: Forward, backward and optimizer, without the two above.
        late: (steps,) the place of the rank whose gradients came last; -1 without an exchange.
    """

    ranks: tuple[int, ...]
    step_s: np.ndarray
    wait_s: np.ndarray
    others_s: np.ndarray
    transfer_s: np.ndarray
    compute_s: np.ndarray
    late: np.ndarray

    def _share(self, seconds: np.ndarray) -> np.ndarray:
        return seconds.sum(axis=1) / self.step_s.sum(axis=1)

    @property
    def wait(self) -> np.ndarray:
        """Each rank's share of wall time waiting for data."""
        return self._share(self.wait_s)

    @property
    def others(self) -> np.ndarray:
        """Each rank's share of wall time waiting for the last of the ranks."""
        return self._share(self.others_s)

    @property
    def transfer(self) -> np.ndarray:
        """Each rank's share of wall time in the exchange itself, not overlapped."""
        return self._share(self.transfer_s)

    @property
    def compute(self) -> np.ndarray:
        """Each rank's share of wall time computing."""
        return self._share(self.compute_s)

    @property
    def communication(self) -> np.ndarray:
        """Each rank's share of wall time waiting for averaged gradients, for whatever reason."""
        return self.others + self.transfer

    @property
    def other(self) -> np.ndarray:
        """What is left: copies, Python between the steps."""
        known = self.wait + self.compute + self.communication
        return np.clip(1 - known, 0, 1)

    def take(self, steps: np.ndarray) -> RankTimes:
        """Return the same for the steps with these indices, which may repeat."""
        names = ("step_s", "wait_s", "others_s", "transfer_s", "compute_s")
        some = {name: getattr(self, name)[:, steps] for name in names}
        return RankTimes(self.ranks, late=self.late[steps], **some)

    def to_dict(self) -> dict[str, Any]:
        """The shares of each rank, as JSON types."""
        return {
            "ranks": list(self.ranks),
            "steps": self.step_s.shape[1],
            **{name: [round(float(x), 4) for x in getattr(self, name)] for name in PARTS},
        }

    def __repr__(self) -> str:
        rows = [f"{'rank':>4}  {'data':>5}  {'compute':>7}  {'others':>6}  {'exchange':>8}  other"]
        for i, rank in enumerate(self.ranks):
            rows.append(
                f"{rank:4}  {self.wait[i]:5.0%}  {self.compute[i]:7.0%}  {self.others[i]:6.0%}  "
                f"{self.transfer[i]:8.0%}  {self.other[i]:5.0%}"
            )
        return "\n".join(rows)


def rank_times(ranks: Any) -> RankTimes | None:
    """Return where the ranks' time went, warm-up excluded; None if there is too little.

    Raises nothing on a damaged record: steps that some rank lacks are left out.
    """
    runs = [run for run in ranks if run.steps]
    count = min((run.steps for run in runs), default=0)
    first = max((run.warmup for run in runs), default=0)
    if not runs or count - first < MIN_STEPS or first < 1:
        return None
    stamps = np.stack([_absolute(run)[first - 1 : count] for run in runs])  # (ranks, steps, 6) ns
    exchange = np.stack([run.exchange_ns[first:count] for run in runs])  # (ranks, steps, 2) ns
    asked, ready, _, _, start, end = np.moveaxis(stamps[:, 1:], 2, 0)
    before = stamps[:, :-1, 5]  # the end of the step before
    wait = np.clip(np.minimum(ready, start) - np.maximum(asked, before), 0, None)
    none = np.isnan(exchange).any(axis=(0, 2))  # (steps,): nothing was exchanged
    complete, averaged = np.where(none[:, None], 0.0, exchange).transpose(2, 0, 1)
    exposed = np.clip(averaged - complete, 0, None)
    others = np.clip(complete.max(axis=0) - complete, 0, exposed)
    late = np.where(none, -1, complete.argmax(axis=0))
    compute = np.clip(end - start - exposed, 0, None)
    return RankTimes(
        tuple(run.rank for run in runs),
        step_s=np.maximum(end - before, 1) / 1e9,
        wait_s=wait / 1e9,
        others_s=others / 1e9,
        transfer_s=(exposed - others) / 1e9,
        compute_s=compute / 1e9,
        late=late,
    )


def _absolute(run: Any) -> np.ndarray:
    """Return the run's stamps (steps, 6) in ns on the machine's own clock."""
    steps = run.steps_since(0)
    return (stamps_ns(steps) + steps[0]["t"][0]).astype(float)
