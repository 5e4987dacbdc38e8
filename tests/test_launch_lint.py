"""On every card each lesson, label and record shows what it says: launches, arithmetic, or memory.

The table is `launch_lint.jsonl`; `python tests/launch_lint.py --write` makes it anew.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import launch_claims
import launch_lint
import pytest
import standin_gpu
import torch
from launch_replay import Op, Step, replayed

from labkit.analysis import datasheets
from labkit.experiments import EXPERIMENTS

MADE_ANEW = ("H200",)  # the fastest, the first to be launch-bound; all six take a minute


@functools.cache
def stored() -> dict:
    return launch_lint.parsed(launch_lint.TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("card", standin_gpu.CARDS)
def test_every_card_shows_what_the_course_claims(card):
    differ = [launch_lint.wrong(row) for (_, name), row in stored().items() if name == card]
    assert differ and not list(filter(None, differ))


@pytest.mark.slow
def test_the_table_is_what_the_course_has_now():
    made_with = json.loads(launch_lint.TABLE.read_text(encoding="utf-8").splitlines()[0])["torch"]
    if made_with.split(".")[:2] != torch.__version__.split(".")[:2]:
        pytest.skip("the table was made with another PyTorch, which launches other kernels")
    command = [sys.executable, launch_lint.__file__, "--json", *MADE_ANEW]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr[-3000:]
    now = launch_lint.parsed(child.stdout)
    assert now.keys() == {key for key in stored() if key[1] in MADE_ANEW}
    for key, row in now.items():
        before = stored()[key]
        assert (row["claim"], row["regime"]) == (before["claim"], before["regime"]), key
        assert row["over_launches"] == pytest.approx(before["over_launches"], rel=0.1), key


ROW = {"label": "a step", "card": "T4", "waiting": 0.0, "costs": None, "over_launches": 9.0}


@pytest.mark.parametrize(("claim", "shown"), [
    ("compute", {"regime": "launch"}),
    ("device", {"regime": "precision", "over_launches": 1.1}),  # a slower host, and it waits
    ("starved", {"regime": "compute", "waiting": 0.02}),
    ("not launch", {"regime": "launch"}), ("launch", {"regime": "launch", "costs": 0.03}),
    ("", {"regime": "out of memory"}),
])  # fmt: skip
def test_a_card_that_shows_something_else_is_named(claim, shown):
    assert "a step: claimed" in launch_lint.wrong(ROW | {"claim": claim} | shown)


def test_every_experiment_is_in_the_table_or_has_a_reason_not_to_be():
    timed = {label.split("(")[0].split()[1] for label, _ in stored() if label.startswith("exp")}
    assert timed == set(EXPERIMENTS) - set(launch_claims.NO_REGIME)


def test_no_exercise_works_on_the_card():
    folder = launch_lint.NOTEBOOKS.parent / "labkit" / "course"
    assert not [path for path in folder.glob("nb*.py") if "bench.device" in path.read_text()]


@pytest.mark.parametrize("card", standin_gpu.CARDS.values(), ids=lambda card: card.name)
def test_the_stand_in_has_the_numbers_of_the_data_sheet(card):
    sheet = datasheets.card(card.name)
    assert sheet is not None
    assert card.gb_per_s == pytest.approx(sheet.gb_per_s, rel=0.01)
    for name in sheet.tflop_per_s.keys() & card.tflops.keys():
        assert card.tflops[name] == pytest.approx(sheet.tflop_per_s[name], rel=0.01), name


# -- the replay: a queue that can be worked out by hand ------------------------------------------

CARD = standin_gpu.Card("made up", {"fp32": 10 / standin_gpu.REACHED}, 1e3, 1, 1, (8, 0), 1)
LOAD = [Op("load"), Op("copied")]


def kernels(us: float, count: int) -> list[Op]:
    """Some that take so long each on the made-up card: 10 TFLOP/s are 1e7 FLOP/us."""
    return [Op("kernel", "mm", flops=us * 1e7, format="fp32")] * count


@pytest.mark.parametrize(
    ("step", "compute", "launch"),
    [
        (Step([*LOAD, *kernels(20, 10)], loader_us=100), 200, 0),  # the device never waits
        (Step([*LOAD, *kernels(2, 100)]), 200, 100 * (6 - 2)),  # nor does a short kernel's host
        (Step([*LOAD, *kernels(20, 10), Op("wait")]), 200, 6),  # the queue runs dry
    ],
)
def test_the_device_waits_for_launches_where_it_is_quicker(step, compute, launch):
    spent = replayed(step, CARD)
    assert spent["compute"] == pytest.approx(compute) and spent["input"] == pytest.approx(0)
    assert spent["launch"] == pytest.approx(launch)


def test_a_loader_costs_what_exceeds_the_queue_and_workers_share_it():
    spent = replayed(Step([*LOAD, *kernels(20, 10)], loader_us=1000), CARD)
    assert spent["compute"] == pytest.approx(200)
    assert spent["input"] + spent["launch"] == pytest.approx(1000 + 10 * 6 - 200, abs=60)
    shared = replayed(Step([*LOAD, *kernels(100, 1)], loader_us=1000, workers=4), CARD)
    assert sum(shared[part] for part in ("compute", "input", "launch")) == pytest.approx(250)
