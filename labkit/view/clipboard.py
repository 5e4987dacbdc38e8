"""Buttons that copy what a panel asks for as a text."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

import anywidget
import traitlets

from labkit.view.home_thread import HomeThread
from labkit.view.page_files import STYLE_SHEET, script_of


class Clipboard(anywidget.AnyWidget):
    """A button for each text; it is made when it is asked for."""

    _esm = script_of("dom.js", "clipboard.js")
    _css = STYLE_SHEET

    names = traitlets.List().tag(sync=True)

    def __init__(self, texts: Mapping[str, Callable[[], str]], home: HomeThread):
        """Offer `texts`: what makes each, by its name."""
        super().__init__(names=list(texts))
        self.texts = texts
        self.on_msg(lambda _self, asked, _buffers: home.call(self._begin, asked["copy"]))

    def _begin(self, name: str) -> None:
        """Copy in a thread: a whole script takes two seconds to write."""
        threading.Thread(target=self._copy, args=[self.texts[name]], daemon=True).start()

    def _copy(self, make: Callable[[], str]) -> None:
        with contextlib.suppress(ValueError):  # the panel says which controls do not go together
            self.send({"text": make()})
