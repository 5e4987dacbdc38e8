"""Ever fewer of many like events, so that the log of a run of days stays small."""

from __future__ import annotations


class Thinning:
    """Chooses among like events: all of the first ones, then every second, every fourth, ..."""

    def __init__(self, room: int):
        """The first `room` are chosen, and half as many each time that their number doubles."""
        self.room = room
        self.met = 0
        self.every = 1

    def keeps(self) -> bool:
        """Return whether the next event is one of those."""
        number = self.met
        self.met += 1
        if number >= self.room * self.every:
            self.every *= 2
        return number % self.every == 0
