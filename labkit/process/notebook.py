"""Whether this process is a notebook's."""

from __future__ import annotations

import sys


def in_notebook() -> bool:
    """Return whether this is a Jupyter kernel, whose front end shows HTML and widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None
