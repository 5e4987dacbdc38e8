"""The folder `labkit/data`: the listings and the templates in it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import labkit
from labkit.knobs import check_names

if TYPE_CHECKING:
    import jinja2
    import pandas

DATA = Path(labkit.__file__).parent / "data"
PUBLISHED = DATA / "published"


def entries(file: str) -> dict[str, Any]:
    """Return what is in a file of the folder, by name."""
    return json.loads((DATA / file).read_text(encoding="utf-8"))


def published(name: str | None = None) -> pandas.DataFrame:
    """Return what others measured on real GPUs, a row for each measurement; none of it here.

    Its columns `card` and `source` say on what, and where, the number was published; `.attrs` what
    the table is, how it was measured, when, and under which licence. Without a name, list the
    tables. Raises ValueError on a name that is not there.
    """
    import pandas

    tables = pandas.read_csv(PUBLISHED.with_suffix(".csv"), index_col="name", keep_default_na=False)
    if name is None:
        return tables[["what"]].reset_index()
    check_names([name], tables.index, "published measurements")
    table = pandas.read_csv(PUBLISHED / f"{name}.csv", keep_default_na=False)
    table.attrs = dict(tables.loc[name])
    return table


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
