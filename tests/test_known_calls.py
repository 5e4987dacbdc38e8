"""Known calls are data: each row matches its example as a stack shows it, and has a source."""

import re
from dataclasses import replace

import pytest

from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.wording import known_call, known_calls

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
