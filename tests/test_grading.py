"""Grading: each submission costs its own rows, and nothing is left of it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from labkit.course.grading import grade
from labkit.course.submission import BadNotebook, read

FIRST, BREAK = "00-first", "07-graph-break"
CHECK_FIRST, CHECK_BREAK = (f'lk.challenge("{key}").check(answer)' for key in (FIRST, BREAK))
SOLUTION = "answer = lk.Pipeline(num_workers=4)"
CHEAT = "answer = {'num_workers': 6, 'steps': 5}\n"
WHOLE = """import torch
def answer(x):
    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5
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


def verdicts(grades):
    return [(Path(row.notebook).parent.name, row.challenge, row.verdict) for row in grades]


@pytest.fixture(autouse=True)
def nothing_is_left():
    temp = Path(tempfile.gettempdir())
    before = set(temp.glob("labkit-grade-*"))
    yield
    assert set(temp.glob("labkit-grade-*")) <= before


# -- the whole way ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_class_of_submissions_is_graded_and_each_costs_its_own_row(tmp_path, labkit_command):
    root = tmp_path / "submitted"
    (root / "a right").mkdir(parents=True)
    (root / "a right" / "mine.py").write_text(WHOLE)
    (root / "a right" / "link").symlink_to("/etc/passwd")
    beside = "import mine\nassert os.listdir() == ['mine.py']\nopen('own', 'w').write('x')\n"
    stub = f"raise NotImplementedError()\n{CHECK_FIRST}"
    notebook(root / "a right", stub, beside + "answer = mine.answer\n" + CHECK_BREAK)
    notebook(root / "b wrong", CHEAT + CHECK_FIRST)
    notebook(root / "c quits", "os._exit(0)\n" + CHECK_FIRST)
    notebook(root / "d edits", f"{CHEAT}assert {CHECK_FIRST} or True\nprint('PASSED')")
    (root / "e none").mkdir()
    (root / "e none" / "n.ipynb").write_text("[1, 2")
    done = labkit_command("grade", root, "--json", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    rows = json.loads(done.stdout)["rows"]
    found = [(Path(r["notebook"]).parent.name, r["challenge"], r["verdict"]) for r in rows]
    assert found == [
        ("a right", FIRST, "no answer"), ("a right", BREAK, "passed"),
        ("b wrong", FIRST, "not yet"), ("c quits", FIRST, "crashed"), ("d edits", FIRST, "not yet"),
        ("e none", None, "not a notebook"),
    ], rows  # fmt: skip
    assert "Leave steps as it is" in rows[2]["why"]
    assert os.listdir(tmp_path) == ["submitted"] and not (root / "a right" / "own").exists()


@pytest.mark.slow
def test_what_hangs_is_stopped_in_its_cell_and_in_its_check(tmp_path):
    leaves = "import subprocess\nsubprocess.Popen(['sleep', '987'], start_new_session=True)\n"
    notebook(tmp_path / "cell", leaves + "while True: print('x' * 2**20)\n" + CHECK_FIRST)
    notebook(tmp_path / "check", "def answer(x):\n    while True: pass\n" + CHECK_BREAK)
    grades = grade([tmp_path], timeout_s=4)
    assert verdicts(grades) == [("cell", FIRST, "timed out"), ("check", BREAK, "timed out")]
    assert [row.why for row in grades] == ["Stopped after 4 s.", "A run was stopped after 4 s."]
    commands = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert b"sleep\x00987\x00" not in commands


@pytest.mark.slow
def test_what_goes_wrong_by_accident_is_said(tmp_path, monkeypatch):
    cells = {
        "a exit": ("raise SystemExit('bye')", "crashed", "SystemExit: bye"),
        "d int": ("answer = 5", "not yet", "this is int"),
        "f memory": ("x = bytearray(8 * 2**30)", "crashed", "MemoryError"),
        "g key": ("print(os.environ['MY_API_KEY'])", "crashed", "KeyError"),
    }
    for name, (text, _, _) in cells.items():
        notebook(tmp_path / name, text + "\n" + CHECK_FIRST)
    monkeypatch.setenv("MY_API_KEY", "secret")
    grades = grade([tmp_path])
    for row, (_, verdict, why) in zip(grades, cells.values(), strict=True):
        assert row.verdict == verdict and why in row.why, row


@pytest.mark.slow
def test_imports_come_from_the_whole_notebook_and_nothing_else_is_run(tmp_path):
    setup = "%matplotlib inline\nimport labkit as kit\nfrom nowhere import x\nraise SystemExit"
    cells = 'answer = kit.Pipeline(width=2)\n!true\nkit.challenge("00-first").check(answer)'
    (row,) = grade([notebook(tmp_path / "<b>", cells, setup=setup)])
    assert row.verdict == "not yet" and "Leave" in row.why and "width" in row.why
    shown = grade([tmp_path / "gone\x1b.ipynb"])
    assert "\x1b" not in repr(shown) and "0 of 0 passed; 1 not a notebook" in repr(shown)


# -- reading notebooks -----------------------------------------------------------------------------


def test_answer_cells_and_tests_cells_as_in_nbgrader(tmp_path):
    stub, check = "raise NotImplementedError()", f"assert {CHECK_FIRST}"
    cells = (stub, "assert 1", stub, SOLUTION, check, WHOLE, f"assert {CHECK_BREAK}")
    answer, tests, by_hand = (True, False), (False, True), (True, True)
    kinds = (answer, tests, by_hand, answer, tests, answer, tests)
    found = read(notebook(tmp_path, *cells, kinds=kinds))
    assert [(each.key, each.cells) for each in found] == [
        (FIRST, (SOLUTION, check)), (BREAK, (WHOLE, f"assert {CHECK_BREAK}")),
    ]  # fmt: skip


BAD = {
    "text": "hello", "list": "[]", "nothing": "", "no cells": "{}", "deep": "[" * 100_000,
    "cells": '{"cells": 3}', "source": '{"cells": [{"cell_type": "code", "source": 3}]}',
    "bytes": b"\xff\xfe", "number": '{"cells": ' + "9" * 9999 + "}",
}  # fmt: skip


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_what_is_not_a_notebook_says_so_in_a_sentence(tmp_path, content):
    path = tmp_path / "n.ipynb"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadNotebook, match="not a notebook"):
        read(path)


def test_odd_files_are_not_notebooks(tmp_path):
    os.mkfifo(tmp_path / "fifo.ipynb")
    grades = grade([tmp_path / "fifo.ipynb", tmp_path / "gone.ipynb"])
    whys = ["not a file", "cannot be read: No such file or directory"]
    assert [row.why for row in grades.bad] == whys


def test_only_asks_every_notebook_for_the_same_challenges(tmp_path):
    none = notebook(tmp_path / "none", "1 + 1")
    other = notebook(tmp_path / "other", 'answer = 1\nlk.challenge("99-x").check(answer)')
    assert verdicts(grade([none, other], only=[FIRST])) == [
        ("none", FIRST, "no answer"), ("other", FIRST, "no answer"),
    ]  # fmt: skip
    assert [row.verdict for row in grade([none, other])] == ["no answer", "crashed"]
    for bad in ({"only": ["99-x"]}, {"timeout_s": 0}, {"timeout_s": float("nan")}):
        with pytest.raises(ValueError, match="99-x|timeout"):
            grade([none], **bad)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no notebook below"):
        grade([tmp_path / "empty"])


def test_trouble_of_ours_costs_one_row_too(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.course.grading._run", lambda *_: 1 / 0)
    (row,) = grade([notebook(tmp_path, SOLUTION + "\n" + CHECK_FIRST)])
    assert row.verdict == "crashed" and "could not be graded: ZeroDivisionError" in row.why


def test_grading_needs_no_torch_here():
    code = "import sys, labkit.course.grading; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
