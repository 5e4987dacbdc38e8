"""A panel by keyboard and screen reader."""

from __future__ import annotations

import anywidget

from labkit.view.page_files import STYLE_SHEET, script_of


class PanelAccess(anywidget.AnyWidget):
    """Shows nothing: it names the controls of the panel it stands in, and keeps the focus there."""

    _esm = script_of("panel_access.js")
    _css = STYLE_SHEET
