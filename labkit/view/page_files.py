"""What the page loads of a widget: its JavaScript and the style sheet of all of them."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
STYLE_SHEET = HERE / "live.css"


def script_of(*names: str) -> str:
    """Return files of JavaScript, joined: the page loads a widget's as one module."""
    return "\n".join((HERE / name).read_text("utf-8") for name in names)
