"""What the page loads of a widget: its JavaScript and the style sheet of all of them."""

from __future__ import annotations

from pathlib import Path

import anywidget

FIGURE_PX = {False: 660, True: 780}  # height of a figure, 900 wide; True: with the run before
HERE = Path(__file__).parent
STYLE_SHEET = HERE / "live.css"


def script_of(*names: str) -> str:
    """Return files of JavaScript, joined: the page loads a widget's as one module."""
    return "\n".join((HERE / name).read_text("utf-8") for name in names)


class PanelAccess(anywidget.AnyWidget):
    """Shows nothing: it names the controls of the panel it stands in, and keeps the focus there."""

    _esm = script_of("panel_access.js")
    _css = STYLE_SHEET
