"""A widget that is a text where none can be shown."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets
from IPython.display import display
from ipywidgets import Layout

from labkit.view.display import why_no_widgets

# Under the widget, hidden by live.css: seen only where its kernel is gone, or no widgets are shown
FALLBACK = "<div class='labkit-fallback'>A panel needs its kernel: run this cell again. {}</div>"


class WidgetOrText(widgets.VBox):
    """Shows its children; where a front end cannot, what it is, why not and what to do instead."""

    def __init__(self, name: str, instead: str, children: Sequence[widgets.Widget]):
        self.name = name
        self.instead = instead
        self.missing = why_no_widgets()  # None where widgets may show
        self.text = f"{name}: run this cell in Jupyter to use it. {instead}"
        if self.missing:
            self.text += f" No widgets here: {self.missing}."
        super().__init__(children, layout=Layout(max_width="900px", overflow="hidden"))

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: dict) -> dict:
        if self.missing:
            return {"text/plain": self.text}
        widget = super()._repr_mimebundle_(**kwargs) or {}
        return widget | {"text/plain": self.name}  # what to do is in the fallback below it

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        if self.missing is None:
            fallback = FALLBACK.format(self.instead)
            display({"text/html": fallback, "text/plain": ""}, raw=True)
