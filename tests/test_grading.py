"""Grading: each submission costs its own rows, and nothing is left of it."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from planted import wait_until

from labkit.course.grading import grade, read

FIRST, BYTES = "00-first", "07-bytes"
CHECK_FIRST, CHECK_BYTES = (f'lk.challenge("{key}").check(answer)' for key in (FIRST, BYTES))
SOLUTION = "answer = lk.Pipeline(num_workers=4)"
GELU = """import torch
def answer(x):
    return torch.nn.functional.gelu(x, approximate="tanh")
"""


def notebook(folder, *cells, setup="import os, time\nimport labkit as lk", kinds=()):
    """A submission: a setup cell, then challenge cells, or nbgrader's (solution, grade) `kinds`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [{"cell_type": "code", "metadata": {}, "source": setup, "outputs": []}]
    for number, text in enumerate(cells):
        metadata = {"tags": ["challenge"]}
        if kinds:
            metadata = {"nbgrader": dict(zip(("solution", "grade"), kinds[number], strict=True))}
        made.append({"cell_type": "code", "metadata": metadata, "source": text.splitlines(True)})
    path = folder / "n.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": made}))
    return path


@pytest.fixture(autouse=True)
def nothing_is_left():
    temp = Path(tempfile.gettempdir())
    before = set(temp.glob("labkit-grade-*"))
    yield
    wait_until(lambda: set(temp.glob("labkit-grade-*")) <= before)


# -- the whole way ---------------------------------------------------------------------------------

STUB = f"raise NotImplementedError()\n{CHECK_FIRST}"
BESIDE = "import mine\nassert os.listdir() == ['mine.py']\nopen('own', 'w').write('x')\n"
EDITS = "!true\nassert kit.challenge('00-first').check({'num_workers': 6, 'steps': 5})"
CLASS = {  # folder: its cells, then (challenge, verdict, why) of each row
    "beside": ((STUB, BESIDE + "answer = mine.answer\n" + CHECK_BYTES),
               (FIRST, "no answer", "No answer yet."), (BYTES, "passed", "")),
    "edits": ((EDITS + " or True\nprint('PASSED')",), (FIRST, "not yet", "Leave steps as given")),
    "key": (("print(os.environ['MY_API_KEY'])",), (FIRST, "crashed", "KeyError")),
    "memory": (("x = bytearray(8 * 2**30)",), (FIRST, "crashed", "MemoryError")),
    "none": (None, (None, "not a notebook", "not JSON")),
    "quits": (("os._exit(0)",), (FIRST, "crashed", "Its process ended.")),
}  # fmt: skip


@pytest.mark.slow
def test_a_class_is_graded_and_each_submission_costs_its_own_row(tmp_path, labkit_command):
    root = tmp_path / "submitted"
    # Of other cells the imports count, one by one, and nothing else is run
    setup = "%matplotlib inline\nimport os\nimport labkit as kit\nfrom nowhere import x\nraise Bad"
    for name, (cells, *_) in CLASS.items():
        if cells:
            cells = [text if "check(" in text else f"{text}\n{CHECK_FIRST}" for text in cells]
            notebook(root / name, *cells, setup=setup)
    (root / "beside" / "mine.py").write_text(GELU)
    (root / "beside" / "link").symlink_to("/etc/passwd")
    (root / "none").mkdir()
    (root / "none" / "n.ipynb").write_text("[1, 2")
    secret = os.environ | {"MY_API_KEY": "secret"}
    done = labkit_command("grade", root, "--json", cwd=tmp_path, env=secret)
    assert done.returncode == 2, done.stderr
    rows = json.loads(done.stdout)["rows"]
    wanted = [(name, *row) for name, (_, *expected) in CLASS.items() for row in expected]
    for row, (name, key, verdict, why) in zip(rows, wanted, strict=True):
        assert (Path(row["notebook"]).parent.name, row["challenge"]) == (name, key)
        assert row["verdict"] == verdict and why in (row["why"] or ""), row
        assert row["passed"] == (verdict == "passed") == bool(row["lines"])
    assert os.listdir(tmp_path) == ["submitted"] and not (root / "beside" / "own").exists()


@pytest.mark.slow
def test_what_hangs_is_stopped_in_its_cell_and_in_its_check(tmp_path):
    leaves = "import subprocess\nsubprocess.Popen(['sleep', '987'], start_new_session=True)\n"
    notebook(tmp_path / "cell", leaves + "while True: print('x' * 2**12)\n" + CHECK_FIRST)
    notebook(tmp_path / "check", "def answer(x):\n    while True: pass\n" + CHECK_BYTES)
    whys = [(row.verdict, row.why) for row in grade([tmp_path], timeout_s=3)]
    late = "timed out"
    assert whys == [(late, "Stopped after 3 s."), (late, "A run was stopped after 3 s.")]
    commands = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert b"sleep\x00987\x00" not in commands


# -- reading notebooks -----------------------------------------------------------------------------


def test_answer_cells_and_tests_cells_as_in_nbgrader(tmp_path):
    stub, check = "raise NotImplementedError()", f"assert {CHECK_FIRST}"
    cells = (stub, "assert 1", stub, SOLUTION, check, GELU, f"assert {CHECK_BYTES}")
    answer, tests, by_hand = (True, False), (False, True), (True, True)
    kinds = (answer, tests, by_hand, answer, tests, answer, tests)
    found = read(notebook(tmp_path, *cells, kinds=kinds))
    before = ["import os, time", "import labkit as lk"]
    assert found == {
        FIRST: (before, [SOLUTION, check]),
        BYTES: ([*before, "import torch"], [GELU, f"assert {CHECK_BYTES}"]),
    }


@pytest.mark.parametrize(
    "content", [b"[]", b"[" * 100_000, b"\xff\xfe", b'{"cells": [{"cell_type": "code"}]}']
)
def test_what_is_not_a_notebook_says_so_in_a_sentence(tmp_path, content):
    (tmp_path / "n.ipynb").write_bytes(content)
    with pytest.raises(ValueError, match="not a notebook"):
        read(tmp_path / "n.ipynb")


def test_odd_files_are_not_notebooks_and_cannot_command_a_terminal(tmp_path):
    os.mkfifo(tmp_path / "fifo.ipynb")
    grades = grade([tmp_path / "fifo.ipynb", tmp_path / "gone\x1b.ipynb"])
    whys = ["not a file", "cannot be read: No such file or directory"]
    assert [row.why for row in grades.bad] == whys
    assert "\x1b" not in repr(grades)


def test_only_asks_every_notebook_for_the_same_challenges(tmp_path):
    none = notebook(tmp_path / "none", "1 + 1")
    other = notebook(tmp_path / "other", 'answer = 1\nlk.challenge("99-x").check(answer)')
    rows = grade([none, other], only=[FIRST])
    assert [(row.challenge, row.verdict) for row in rows] == 2 * [(FIRST, "no answer")]
    assert [row.verdict for row in grade([none, other])] == ["no answer", "crashed"]
    for bad in ({"only": ["99-x"]}, {"timeout_s": 0}):
        with pytest.raises(ValueError, match="99-x|timeout"):
            grade([none], **bad)
