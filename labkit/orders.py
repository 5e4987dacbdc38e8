"""What a kernel asks of the processes of a run, as the files in the run's folder hold it.

`launch.json` is the supervisor's plan, `spec.json` the bench's order. Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, TypeVar, final

if TYPE_CHECKING:
    from labkit.knobs import Settings


class Plan(TypedDict):
    """What a supervisor starts, and for whom."""

    kernel_pid: int
    system: str  # where that pid counts: `process.family.this_system`
    idle_s: float | None  # how long a standby waits for its run; None: the run is there
    bench: list[str]  # a command; the supervisor adds its own pid
    telemetry: list[str]
    after: list[str] | None  # a command for when the run is over


class Asked(TypedDict):
    """What a spec asks for: the first event of a log says it too."""

    pipeline: Settings  # the knobs; of a function only its device


class RowsAsked(Asked):
    """What `lk.measure` asks for."""

    measure: str  # the function's name
    points: list[Settings]  # the arguments of each call


class RanksAsked(Asked):
    """What a distributed run asks for."""

    ranks: int
    no_sync: bool
    starve: dict[str, Settings]  # {rank: its own values of knobs}


class ScriptAsked(Asked):
    """What another training script than the bench's own asks for."""

    module: str  # its `prepare` makes the trainer and the loader
    script: dict[str, list[str]]  # {"fixes": their names}


class UserSource(TypedDict):
    """Where a user's own objects are found: a dataset with what goes with it, or a function."""

    payload: str  # a file in the run's folder
    cwd: str
    path: list[str]  # to import from


class Order(Asked):
    """What every bench is told."""

    run: str  # its name
    cache: str  # labkit's folder of this user
    fault: str | None  # planted by a test, see `bench.planted_fault`


@final
class PipelineOrder(Order):
    """Train the bench's own pipeline."""


@final
class DataOrder(Order):
    """Feed the user's own dataset to their own step, or to none."""

    source: UserSource


@final
class ScriptOrder(Order, ScriptAsked):
    """Train what another script makes."""


@final
class RowsOrder(Order, RowsAsked):
    """Call a function for each row."""

    source: UserSource


@final
class RanksOrder(Order, RanksAsked):
    """Train a pipeline on several ranks."""


RunOrder = PipelineOrder | DataOrder | ScriptOrder
AnyOrder = TypeVar("AnyOrder", bound=Order)
