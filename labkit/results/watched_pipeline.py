"""What a record says of its pipeline; and what stands in for it where a loop was watched."""

from __future__ import annotations

from typing import Any, NoReturn

from labkit.knobs import Settings
from labkit.spec import KNOBS, Pipeline
from labkit.stamps.event_shapes import MOST
from labkit.stamps.record import RecordError

MAX_LOADER = 80  # characters of the name of a loader's type


def pipeline_of(knobs: Settings) -> Pipeline:
    """Build a Pipeline from a record; raise RecordError where its values are not allowed."""
    known = {name: value for name, value in knobs.items() if name in KNOBS}
    try:
        return Pipeline(**known)
    except ValueError as error:
        raise RecordError(f"The record's pipeline is not valid: {error}") from None


class Watched:
    """Stands in for the Pipeline of a watched loop.

    It has the `settings` of the user's loader under the names of the knobs; all others are None.
    """

    simulated_delay = ""

    def __init__(self, loader: str, knobs: Settings):
        """Keep what is a plain value: a record is anybody's."""
        self.loader = str(loader)[:MAX_LOADER]
        self.settings: Settings = {}
        for name, knob in KNOBS.items():
            value = knobs.get(name)
            is_count = isinstance(value, int) and 0 <= value < MOST
            if is_count or (value and value in (knob.choices or ())):
                self.settings[name] = value

    def __getattr__(self, name: str) -> Any:
        """Return the value of a knob."""
        if name not in KNOBS:
            raise AttributeError(name)
        return self.settings.get(name)

    def to_dict(self) -> Settings:
        """Return every knob of a Pipeline; None where this loop's value is not known."""
        return {name: self.settings.get(name) for name in KNOBS}

    def changed(self) -> Settings:
        """Return what is known, the loader's type first."""
        return {"watched": self.loader, **self.settings}

    def but(self, **changes: object) -> NoReturn:
        """Raise ValueError: labkit holds neither the data nor the model of a watched loop."""
        raise ValueError(
            "this run was watched, not made by labkit: change your own loader and watch it again."
        )
