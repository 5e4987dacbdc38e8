"""Other people's numbers, each with its card and source."""

import pytest

import labkit as lk
from labkit.results.templates import PUBLISHED

TABLES = lk.published()


@pytest.mark.parametrize("name", TABLES["name"])
def test_every_published_row_has_a_card_and_a_source_at_a_commit(name):
    table = lk.published(name)
    source = r"https://github.com/[^/]+/[^/]+/(blob|tree)/\w{7,40}/.+"
    assert table["source"].str.fullmatch(source).all()
    assert table["card"].all() and table.notna().all(axis=None)
    assert all(table.attrs[key] for key in ("what", "how", "date", "licence"))


def test_every_file_is_listed_and_an_unknown_name_is_answered_with_those_there_are():
    assert {path.stem for path in PUBLISHED.glob("*.csv")} == set(TABLES["name"])
    with pytest.raises(ValueError, match="'zeus'; available: matmul, remote-reads, batch-power"):
        lk.published("zeus")
