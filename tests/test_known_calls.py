"""Known calls are data: each row matches its example as a stack shows it, and has a source."""

import re
from dataclasses import replace

import pytest

from labkit.diagnosis.causes.loader import cheaper_items
from labkit.diagnosis.findings import Finding
from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.known_calls import known_call, known_calls, known_first

LINE = Line("/home/me/train.py", 26, "Photos.__getitem__", 0.8, "worker", "python")


@pytest.mark.parametrize("row", known_calls(), ids=lambda row: row.example)
def test_a_row_is_found_by_its_example_and_says_what_to_do(row):
    phase = "body" if row.where == "body" else "worker"
    assert known_call(replace(LINE, call=row.example, phase=phase)) == row
    assert re.fullmatch(r"https://\S+", row.source)
    assert row.where in ("", "loading", "body")
    assert row.do.endswith(".") and not row.slow.endswith(".")


def test_a_row_counts_only_where_it_stands():
    for call, phase in [("loss.item()", "body"), ("Image.open()", "body"), ("model()", "body")]:
        assert known_call(replace(LINE, call=call, phase=phase)) is None
    assert known_call(replace(LINE, call="")) is None


def test_the_known_call_of_the_costliest_line_is_the_first_thing_to_change():
    finding = Finding("input", "slow_items", 0.5, remedies=(cheaper_items,))
    line = replace(LINE, call="self.db.execute()")
    first, *others = known_first(replace(finding, lines=(line, LINE))).remedies
    assert first.key == "known_call" and others == [cheaper_items]
    assert "`self.db.execute()` (train.py:26): a query for each item" in first.text
    for lines in ((), (LINE,), (replace(line, share=0.1),)):
        assert known_first(replace(finding, lines=lines)).remedies == (cheaper_items,)
