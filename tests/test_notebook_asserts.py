"""Every assert of the notebooks on one GPU holds on every card, and a machine with one runs ranks.

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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="needs g++"),
]
CARDS = ("T4", "H200")  # the slowest and the fastest
if os.environ.get("LABKIT_NIGHTLY") == "1":
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


@pytest.mark.parametrize("card", CARDS)
def test_what_notebooks_assert_holds_on(card, asserts_on):
    found = asserts_on[card]
    wrong = {cell: how for cell, how in found.items() if how != "held"}
    assert not wrong, "\n".join(f"{cell}: {how}" for cell, how in wrong.items())
    every = {cell.id for path in cells.NOTEBOOKS for cell in cells.code_cells(path) if cell.asserts}
    assert set(cells.LEFT_OUT) <= every <= set(found) | set(cells.LEFT_OUT)


def test_a_run_and_ranks_on_a_machine_with_one_card():
    """The processes that labkit starts see one card, on the real clock."""
    site = Path(cells.__file__).with_name("standin_site")
    env = os.environ | {"LABKIT_STANDIN": "T4", "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", ONE_CARD]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    alone, why, refused = json.loads(done.stdout.splitlines()[-1])
    assert alone == "cpu" and "2 ranks have 1 between them" in why
    assert "Tesla T4" in refused and "lk.run(ranks.alone)" in refused


ONE_CARD = """
import json
import labkit as lk

mlp = lk.Pipeline(dataset="array", model="mlp", width=32, depth=1, steps=12, xray=False)
ranks = lk.distributed(mlp, ranks=2, wait=False).wait()
try:
    ranks.speedup(lk.run(mlp, wait=False).wait())
except ValueError as error:
    print(json.dumps([ranks.alone.device, ranks.not_applied["device"], str(error)]))
"""
