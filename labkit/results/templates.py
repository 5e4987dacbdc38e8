"""The folder `labkit/data`: the listings and the templates in it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import labkit

if TYPE_CHECKING:
    import jinja2

DATA = Path(labkit.__file__).parent / "data"


def entries(file: str) -> dict[str, Any]:
    """Return what is in a file of the folder, by name."""
    return json.loads((DATA / file).read_text(encoding="utf-8"))


@functools.cache
def template(name: str) -> jinja2.Template:
    """Return a template of the data folder; one that ends in .html escapes what is filled in."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(DATA),
        autoescape=jinja2.select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)
