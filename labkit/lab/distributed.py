"""What is asked for on several processes: a pipeline, how many ranks, and how they are set."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.lab.pipeline import Pipeline

MOST_RANKS = 64
STARVING = ("io_ms", "prep_ms", "stall_ms", "stall_every", "augment", "num_workers")
RENDEZVOUS = {  # torchrun's options for several machines, passed through to it
    "nnodes": "how many machines",
    "node_rank": "which of them this one is, from 0",
    "rdzv_backend": "c10d (the usual), static, etcd-v2",
    "rdzv_endpoint": "HOST:PORT at which they meet, the same on all",
    "rdzv_id": "the job's name, the same on all",
    "master_addr": "with static: the first machine",
    "master_port": "with static: a free port there",
    "local_addr": "the address by which the others reach this one",
}


@dataclass(frozen=True)
class Distributed:
    """A pipeline on several ranks (processes, a device each) under DistributedDataParallel.

    Attributes:
        pipeline: What every rank runs; `batch_size` is each rank's, so that all of them together
            train on `ranks` times as many samples a step.
        ranks: Processes on this machine, 1 to 64.
        no_sync: Exchange gradients for the last micro-batch before an update only. It changes
            something with `accumulation_steps` above 1.
        starve: {rank: {knob: value}}: ranks whose loader is set otherwise, by the stated knobs.
        rendezvous: torchrun's options for several machines, by name; empty for one machine.

    Raises:
        ValueError: A bad value, named with what is allowed.
        RuntimeError: On Windows, whose PyTorch has no launcher that works out of the box.
    """

    pipeline: Pipeline = field(default_factory=Pipeline)
    ranks: int = 2
    no_sync: bool = False
    starve: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    rendezvous: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not isinstance(self.pipeline, Pipeline):
            raise ValueError(f"pipeline={self.pipeline!r}: give a labkit.Pipeline.")
        ranks = self.ranks
        if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
            raise ValueError(f"ranks={ranks!r} is not allowed: use 1 to {MOST_RANKS}.")
        if self.no_sync not in (True, False):
            raise ValueError(f"no_sync={self.no_sync!r} is not allowed: use True or False.")
        if self.pipeline.device not in ("auto", "cpu", "cuda"):
            raise ValueError(
                f"device={self.pipeline.device!r}: ranks have a device each; use 'auto', 'cpu' or "
                "'cuda' (CUDA_VISIBLE_DEVICES chooses the cards)."
            )
        self._check_rendezvous()
        self._check_starve()
        if sys.platform == "win32":
            raise RuntimeError(
                "Distributed runs need Linux or macOS: PyTorch's launcher (torchrun) does not "
                "start on Windows as installed. Use WSL, or lk.run for one process."
            )

    def _check_starve(self) -> None:
        several = int(self.rendezvous.get("nnodes", 1)) > 1
        for rank, knobs in self.starve.items():
            if not isinstance(rank, int) or rank < 0 or (rank >= self.ranks and not several):
                raise ValueError(
                    f"starve={{{rank!r}: ...}}: there are ranks 0 to {self.ranks - 1}."
                )
            for name in knobs:
                if name not in STARVING:
                    raise ValueError(
                        f"starve sets what a loader does, and {name!r} is not of that: "
                        f"use {', '.join(STARVING)}."
                    )
            self.pipeline.but(**knobs)  # checks the values

    def _check_rendezvous(self) -> None:
        for name, value in self.rendezvous.items():
            if name not in RENDEZVOUS:
                raise ValueError(
                    f"{name!r} is none of torchrun's rendezvous options: {', '.join(RENDEZVOUS)}."
                )
            whole = name in ("nnodes", "node_rank", "master_port")
            if whole and not str(value).isdigit():
                raise ValueError(f"{name}={value!r} is not allowed: use a whole number.")
            if not str(value) or any(c.isspace() for c in str(value)):
                raise ValueError(f"{name}={value!r} is not allowed: {RENDEZVOUS[name]}.")

    def to_spec(self) -> dict[str, Any]:
        """What the log's first event says of it."""
        return {
            "pipeline": self.pipeline.to_dict(),
            "ranks": self.ranks,
            "no_sync": self.no_sync,
            "starve": {str(rank): dict(knobs) for rank, knobs in self.starve.items()},
            "rendezvous": dict(self.rendezvous),
        }
