"""On the slowest and the fastest card the course's pipelines show what is claimed of them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import standin_gpu

from labkit.analysis import datasheets

DEVICE_BOUND = ("compute", "precision", "memory_bandwidth")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="compiled by g++")
@pytest.mark.parametrize("card", ["T4", "H200"])
def test_a_card_shows_what_the_course_claims(card):
    command = [sys.executable, Path(__file__).with_name("card_claims.py"), card]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (claim, named) in json.loads(done.stdout).items():
        assert named in (DEVICE_BOUND if claim == "device" else (claim,)), name


@pytest.mark.parametrize("card", standin_gpu.CARDS.values(), ids=lambda card: card.name)
def test_the_stand_in_has_the_numbers_of_the_data_sheet(card):
    sheet = datasheets.card(card.name)
    assert card.gb_per_s == pytest.approx(sheet.gb_per_s, rel=0.01)
    for name in sheet.tflop_per_s.keys() & card.tflops.keys():
        assert card.tflops[name] == pytest.approx(sheet.tflop_per_s[name], rel=0.01), name
