"""On every card each default, record, exercise and planted fault shows what the course says of it.

The table is `launch_lint.jsonl`; `python tests/launch_lint.py --write` makes it anew.
"""

import json
import subprocess
import sys

import launch_lint
import pytest
import standin_gpu
import torch
from launch_lint import Cell, Op, Step, replayed

from labkit.analysis import datasheets

MADE_ANEW = "H200"  # the fastest, the first to be launch-bound; all six take half a minute
STORED = launch_lint.stored(launch_lint.TABLE.read_text(encoding="utf-8"))


def test_every_card_shows_what_the_course_claims():
    assert launch_lint.differing(STORED) == []
    assert all(set(standin_gpu.CARDS) < set(row) for row in STORED.values())


@pytest.mark.slow
def test_the_table_is_what_the_course_has_now():
    made_with = json.loads(launch_lint.TABLE.read_text(encoding="utf-8").splitlines()[0])["torch"]
    if made_with.split(".")[:2] != torch.__version__.split(".")[:2]:
        pytest.skip("the table was made with another PyTorch, which launches other kernels")
    command = [sys.executable, launch_lint.__file__, "--json", MADE_ANEW]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr[-3000:]
    now = launch_lint.stored(child.stdout)
    assert now.keys() == STORED.keys()
    for label, row in now.items():
        before, shown = STORED[label][MADE_ANEW], row[MADE_ANEW]
        assert (row["claim"], shown.regime) == (STORED[label]["claim"], before.regime), label
        assert shown.over_launches == pytest.approx(before.over_launches, rel=0.1), label


@pytest.mark.parametrize(("claim", "shown"), [
    ("compute", Cell("launch", 9.0)),
    ("device", Cell("precision", 1.1)),  # a slower host, and it waits
    ("starved", Cell("compute", 9.0, 0.02)), ("launch", Cell("launch", 0.5, 0.0, 0.03)),
    ("", Cell("out of memory")),
])  # fmt: skip
def test_a_card_that_shows_something_else_is_named(claim, shown):
    assert launch_lint.differing({"a step": {"claim": claim, "T4": shown}})


@pytest.mark.parametrize("card", standin_gpu.CARDS.values(), ids=lambda card: card.name)
def test_the_stand_in_has_the_numbers_of_the_data_sheet(card):
    sheet = datasheets.card(card.name)
    assert card.gb_per_s == pytest.approx(sheet.gb_per_s, rel=0.01)
    for name in sheet.tflop_per_s.keys() & card.tflops.keys():
        assert card.tflops[name] == pytest.approx(sheet.tflop_per_s[name], rel=0.01), name


# A queue that can be worked out by hand: on 10 TFLOP/s 1e7 FLOP take a µs
CARD = standin_gpu.Card("made up", {"fp32": 10 / standin_gpu.REACHED}, 1e3, 1, 1, (8, 0), 1)
LONG, SHORT = (Op("kernel", "mm", flops=us * 1e7, format="fp32") for us in (20, 2))
LOAD = [Op("load"), Op("copied")]


@pytest.mark.parametrize(("step", "compute", "launch", "waits"), [
    (Step([*LOAD, *[LONG] * 10], loader_us=100), 200, 0, 0),  # the device never waits
    (Step([*LOAD, *[SHORT] * 100]), 200, 100 * (6 - 2), 0),  # nor does a short kernel's host
    (Step([*LOAD, *[LONG] * 10, Op("wait")]), 200, 6, 0),  # the queue runs dry
    (Step([*LOAD, *[LONG] * 10], loader_us=1000), 200, 6, 1000 + 10 * 6 - 200 - 6),
    (Step([*LOAD, *[LONG] * 5], loader_us=1000, workers=4), 100, 6, 250 - 100 - 6),
])  # fmt: skip
def test_the_device_waits_for_launches_where_it_is_quicker_and_for_its_data(
    step, compute, launch, waits
):
    spent = replayed(step, CARD)
    found = spent["compute"], spent["launch"], spent["input"]
    assert found == pytest.approx((compute, launch, waits), abs=0.01)
