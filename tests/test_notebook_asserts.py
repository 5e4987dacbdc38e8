"""Every assert of every notebook holds on every card, and on machines with none, one and two.

Nobody has these cards here: the cells run on a stand-in GPU (`notebooks_on_card`), in processes of
their own, since a process keeps a stand-in for good.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import notebooks_on_card as cells  # noqa: E402 -- needs torch

from labkit.spec import Distributed  # noqa: E402

pytestmark = pytest.mark.slow
needs_standin = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("g++"), reason="the stand-in is compiled with g++"
)
CARDS = ("T4", "H200")  # the slowest and the fastest
if os.environ.get("LABKIT_ALL_CARDS"):
    CARDS += ("RTX4070", "RTX4090", "A100")


@pytest.fixture(scope="module")
def asserts_on():
    """What became of every assert, by card; in two processes at once."""
    command = [sys.executable, Path(cells.__file__)]
    running = [
        subprocess.Popen([*command, *some], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for some in (CARDS[::2], CARDS[1::2])
    ]
    found = {}
    for process in running:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err.decode()[-3000:]
        found |= json.loads(out.splitlines()[-1])
    return found


@needs_standin
@pytest.mark.parametrize("card", CARDS)
def test_what_notebooks_assert_holds_on(card, asserts_on):
    found = asserts_on[card]
    wrong = {cell: how for cell, how in found.items() if how != "held"}
    assert not wrong, "\n".join(f"{cell}: {how}" for cell, how in wrong.items())
    assert all_asserts() <= set(found) | set(cells.LEFT_OUT)


def test_what_is_left_out_is_there_and_has_a_reason():
    assert set(cells.LEFT_OUT) <= all_asserts()
    assert all(cells.LEFT_OUT.values())


def all_asserts():
    every = [cell for path in cells.NOTEBOOKS for cell in cells.code_cells(path)]
    return {cell.id for cell in every if cell.asserts}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_ranks_are_compared_with_one_process_whatever_cards_there_are(count, monkeypatch):
    """Notebook 09: with a single card the ranks train on the CPU, and so has the one process to."""
    from labkit.show import running

    def launch(spec, after=None):
        if isinstance(spec, Distributed):
            return cells.ranks_on(spec, count)
        return cells.one_on(spec, "gpu" if count and spec.device != "cpu" else "cpu")

    monkeypatch.setattr(running, "launch", launch)
    found = dict(cells.run_notebook(cells.NOTEBOOKS[9]))
    assert set(found.values()) == {"held"}, found


@needs_standin
def test_a_run_and_ranks_on_a_machine_with_one_card():
    """The same for real: the processes that labkit starts see one card, on the real clock."""
    site = Path(cells.__file__).with_name("standin_site")
    env = os.environ | {"LABKIT_STANDIN": "T4", "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", ONE_CARD]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["alone"] == ["cpu", "cpu"] and said["speedup"] > 0
    assert "2 ranks have 1 between them" in said["why"]
    assert "Tesla T4" in said["refused"] and "lk.run(ranks.alone)" in said["refused"]


ONE_CARD = """
import json
import labkit as lk

mlp = lk.Pipeline(dataset="array", model="mlp", width=32, depth=1, steps=12, xray=False)
ranks = lk.distributed(mlp, ranks=2, wait=False).wait()
alone, auto = lk.run(ranks.alone, wait=False).wait(), lk.run(mlp, wait=False).wait()
said = {"alone": [alone.asked.device, alone.machine.kind], "speedup": ranks.speedup(alone)}
said["why"] = ranks.not_applied["device"]
try:
    ranks.speedup(auto)
except ValueError as error:
    said["refused"] = str(error)
print(json.dumps(said))
"""
