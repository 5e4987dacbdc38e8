"""What watching tells apart by a word, as it stands in the log."""

from __future__ import annotations

from typing import Literal

DeviceKind = Literal["", "cpu", "gpu"]
"""What the loop's body runs on: "" until the first body has."""
Ending = Literal["", "exhausted", "left early", "failed"]
"""How a pass ended: by the loader's end, the loop's, or an error; "" while it goes on."""
Unit = Literal["samples", "batches"]
"""What throughput counts: batches, where they do not show their samples."""
