"""What a record says of its pipeline; and what stands in for it where a loop was watched."""

from __future__ import annotations

from typing import NoReturn

from labkit.knobs import Settings
from labkit.spec import KNOBS, Pipeline
from labkit.stamps.event_shapes import MOST
from labkit.stamps.record import RecordError


def pipeline_of(knobs: Settings, is_watched: object = None) -> Pipeline:
    """Build a Pipeline from a record; raise RecordError where its values are not allowed."""
    known = {name: value for name, value in knobs.items() if name in KNOBS}
    if is_watched:
        return Watched(**dict.fromkeys(KNOBS) | known)
    try:
        return Pipeline(**known)
    except ValueError as error:
        raise RecordError(f"The record's pipeline is not valid: {error}") from None


class Watched(Pipeline):
    """The settings of a watched loop's loader, under the names of the knobs; others are None."""

    def __post_init__(self) -> None:
        """Keep what is a plain value: a record is anybody's."""
        for name, knob in KNOBS.items():
            value = getattr(self, name)
            is_count = isinstance(value, int) and 0 <= value < MOST
            if not (is_count or (value and value in (knob.choices or ()))):
                object.__setattr__(self, name, None)

    def changed(self) -> Settings:
        """Return what is known."""
        return {name: value for name, value in self.to_dict().items() if value is not None}

    def but(self, **changes: object) -> NoReturn:
        """Raise ValueError: labkit holds neither the data nor the model of a watched loop."""
        raise ValueError(
            "this run was watched, not made by labkit: change your own loader and watch it again."
        )
