"""Draw the README's first picture: an H200 starved by a loader, and fed by it.

    python maintain/lead_picture.py

Both runs ship with the course as records, so that anybody can draw it, on any machine.
"""

from __future__ import annotations

from pathlib import Path

import labkit as lk
from labkit.view.style import png_of

PICTURE = Path(__file__).parents[1] / "notebooks" / "images" / "starved-and-fed.png"


def main() -> None:
    """Draw the run without workers above the one with eight, on one time scale."""
    starved, fed = lk.recorded("NVIDIA-H200/workers-0"), lk.recorded("NVIDIA-H200/workers-8")
    PICTURE.write_bytes(png_of(fed.compare(starved).plot()))


if __name__ == "__main__":
    main()
