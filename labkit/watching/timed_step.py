"""A step of a watched loop, as its timer has stamped it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Mark(NamedTuple):
    """An event, and the host's time before it was recorded."""

    event: torch.Event
    issued_ns: int


class TimedStep(NamedTuple):
    """A step whose body is over on the host; moments in ns."""

    asked: int
    ready: int
    done: int
    samples: int = 0
    batch_bytes: int = 0
    marks: tuple[Mark, Mark] | None = None  # begin and end of its body on a device
    loss: float = math.nan  # where a framework tells it
