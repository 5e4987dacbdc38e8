"""Other people's measurements on real GPUs, as tables: `lk.published()`.

A table is a file of `labkit/data/published/`, with a row for each measurement. Its columns `card`
and `source` say on what, and where, the number was published; `labkit/data/published.csv` has a row
for each table. None of it was measured here.
"""

from __future__ import annotations

import pandas

from labkit.knobs import check_names
from labkit.results.templates import DATA

FOLDER = DATA / "published"


def published(name: str | None = None) -> pandas.DataFrame:
    """Return what others measured, a row for each measurement; without a name, list the tables.

    `.attrs` of a table says what it is, how it was measured, when, and under which licence. Raises
    ValueError on a name that is not there.
    """
    tables = pandas.read_csv(FOLDER.with_suffix(".csv"), index_col="name", keep_default_na=False)
    if name is None:
        return tables[["what"]].reset_index()
    check_names([name], tables.index, "published measurements")
    table = pandas.read_csv(FOLDER / f"{name}.csv", keep_default_na=False)
    table.attrs = {"name": name, **tables.loc[name]}
    return table
