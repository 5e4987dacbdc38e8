"""The files of `labkit/data`, as listings."""

from __future__ import annotations

import json
from typing import Any

from labkit.results.templates import DATA


def entries(file: str) -> dict[str, Any]:
    """Return what is in a file of the data folder, by name."""
    return json.loads((DATA / file).read_text(encoding="utf-8"))
