"""Peaks of some cards, from their makers' data sheets: data/cards.json."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from labkit.results.templates import entries


@dataclass(frozen=True)
class Card:
    """Peaks of a card: dense (without sparsity), matrix products accumulated in FP32."""

    name: str
    gb_per_s: float  # of its memory, 10^9 byte/s
    tflop_per_s: dict[str, float] = field(default_factory=dict)  # per format
    source: str = ""
    note: str = ""  # how it follows from the source, where it does not stand there


# Each with the names that the driver has for it, without the brand in front
CARDS: list[tuple[tuple[str, ...], Card]] = [
    (tuple(found.pop("driver_names")), Card(name, **found))
    for name, found in entries("cards.json").items()
]


def card(name: str) -> Card | None:
    """Return the data sheet of the device with this name; None for a card that is not listed."""
    # The whole name counts: a Ti, a laptop's chip or a part of a card (MIG) is another product
    bare = re.sub("^(NVIDIA |Tesla |GeForce )+", "", name)
    return next((found for names, found in CARDS if bare in names), None)
