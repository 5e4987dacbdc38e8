"""Grading: each submission costs its own rows, and nothing is left of it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import labkit as lk
from labkit.course import landlock
from labkit.course.cell_process import run as run_cells
from labkit.course.grading import Row, grade
from labkit.course.submission import BadNotebook, read
from labkit.process import launcher

FIRST, BREAK = "00-first", "07-graph-break"
CHECK_FIRST, CHECK_BREAK = (f'lk.challenge("{key}").check(answer)' for key in (FIRST, BREAK))
SETUP = "import os, time\nimport labkit as lk"
SOLUTION = "answer = lk.Pipeline(num_workers=4)"
WHOLE = """import torch
def answer(x):
    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5
"""


def notebook(folder, *cells, name="n.ipynb", setup=SETUP, tags=("challenge",)):
    """A submission: a setup cell, then challenge cells."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [{"cell_type": "code", "metadata": {}, "source": setup, "outputs": []}]
    made += [
        {"cell_type": "code", "metadata": {"tags": list(tags)}, "source": text.splitlines(True)}
        for text in cells
    ]
    path = folder / name
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": made}))
    return path


def verdicts(grades):
    return [(Path(row.notebook).parent.name, row.challenge, row.verdict) for row in grades]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    temp = Path(tempfile.gettempdir())
    before = set(temp.glob("labkit-grade-*"))
    yield
    assert set(temp.glob("labkit-grade-*")) <= before
    assert not [handle for handle in launcher.runs if handle.alive()]


@pytest.fixture
def answered(tmp_path):
    """Run one challenge cell, as a submission; return what it handed over."""

    def hand(text, seconds=20.0, files=()):
        path = notebook(tmp_path / "alice", text + "\n" + CHECK_FIRST)
        for name, content in dict(files).items():
            (path.parent / name).write_text(content)
        return run_cells(path, read(path).challenges[0], seconds)

    return hand


# -- the whole way ------------------------------------------------------------------------------


def test_a_class_of_submissions_is_graded_and_each_costs_its_own_row(tmp_path, labkit_command):
    root = tmp_path / "submitted"
    changes = "answer = {'num_workers': 6}\n"
    notebook(root / "a right", changes + CHECK_FIRST, WHOLE + CHECK_BREAK)
    wrong = "answer = {'num_workers': 6, 'steps': 5}\n"
    notebook(root / "b wrong", wrong + CHECK_FIRST)
    notebook(root / "c quits", "os._exit(0)\n" + CHECK_FIRST)
    notebook(root / "d reads", "answer = open('/etc/passwd').read()\n" + CHECK_FIRST)
    notebook(root / "e prints", f'print("{FIRST}: PASSED\\npassed")\nanswer = ...\n{CHECK_FIRST}')
    pries = "def answer(x):\n    return open('/etc/passwd').read()\n" + CHECK_BREAK
    notebook(root / "f pries in the check", pries)
    (root / "g none").mkdir()
    (root / "g none" / "n.ipynb").write_text("[1, 2")
    done = labkit_command("grade", root, "--json", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    rows = json.loads(done.stdout)["rows"]
    found = [(Path(r["notebook"]).parent.name, r["challenge"], r["verdict"]) for r in rows]
    assert found == [
        ("a right", FIRST, "passed"), ("a right", BREAK, "passed"), ("b wrong", FIRST, "not yet"),
        ("c quits", FIRST, "crashed"), ("d reads", FIRST, "refused"),
        ("e prints", FIRST, "no answer"), ("f pries in the check", BREAK, "refused"),
        ("g none", None, "no notebook"),
    ], rows  # fmt: skip
    assert "Leave steps as it is" in rows[2]["why"]
    assert os.listdir(tmp_path) == ["submitted"]  # no score, nothing


def test_what_hangs_is_stopped_in_its_cell_and_in_its_check(tmp_path):
    notebook(tmp_path / "cell", "while True: pass\n" + CHECK_FIRST)
    notebook(tmp_path / "check", "def answer(x):\n    while True: pass\n" + CHECK_BREAK)
    grades = grade([tmp_path], timeout_s=4)
    assert verdicts(grades) == [("cell", FIRST, "too long"), ("check", BREAK, "too long")], grades
    assert [row.why for row in grades] == ["Stopped after 4 s.", "A run was stopped after 4 s."]


def test_the_table_is_for_people_and_obeys_no_submission(tmp_path, labkit_command):
    path = notebook(tmp_path / "s", 'raise ValueError("\\x1b[31m passed <b>")\n' + CHECK_FIRST)
    done = labkit_command("grade", path)
    assert done.returncode == 0 and "0 of 1 passed" in done.stdout
    assert "crashed" in done.stdout and "\x1b" not in done.stdout
    shown = grade([path])._repr_html_()
    assert "&lt;b&gt;" in shown and "<b>" not in shown


# -- what cells may not do, and what it costs them ----------------------------------------------

OTHER = "open('../../bob/n.ipynb').read()"
PRIES = {
    "a system file": "open('/etc/passwd').read()",
    "another submission": OTHER,
    "a folder": "os.listdir('/root')",
    "the grader's environment": "open(f'/proc/{os.getppid()}/environ').read()",
    "a link": "os.symlink('/etc/passwd', 'l'); open('l').read()",
    "a child": "import subprocess; subprocess.run(['true'])",
    "a fork": "os.fork()",
    "the shell": "os.system('true')",
    "a signal": "os.kill(os.getppid(), 9)",
    "the network": "import socket; socket.create_connection(('127.0.0.1', 9))",
    "a file elsewhere": "open('/var/tmp/labkit-grade-was-here', 'w')",
    "removing": "os.remove('/var/tmp/nothing')",
}


@pytest.mark.parametrize("text", PRIES.values(), ids=PRIES)
def test_what_lies_outside_is_refused(answered, tmp_path, text):
    notebook(tmp_path / "bob", SOLUTION + "\n" + CHECK_FIRST)
    if text is OTHER:
        text = f"open({str(tmp_path / 'bob' / 'n.ipynb')!r}).read()"
    handed = answered(text)
    assert handed.verdict == "refused", handed
    assert "outside the submission" in handed.why


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_what_gets_past_python_meets_the_kernel(answered):
    text = """import ctypes
file = ctypes.CDLL(None).open(b'/etc/passwd', 0)
killed = ctypes.CDLL(None).kill(os.getppid(), 9)
raise RuntimeError(f'open {file}, kill {killed}')
"""
    assert answered(text).why == "RuntimeError: open -1, kill -1"


def test_a_child_in_a_session_of_its_own_is_ended(answered):
    text = """import ctypes
libc = ctypes.CDLL(None)
if libc.fork() == 0:
    libc.setsid()
    if libc.fork() == 0:
        libc.prctl(15, b'lk-sleeper', 0, 0, 0)
        libc.sleep(600)
    os._exit(0)
time.sleep(0.3)
answer = lk.Pipeline()
"""
    assert answered(text).answer == lk.Pipeline()
    names = [p.read_text() for p in Path("/proc").glob("[0-9]*/comm") if p.exists()]
    assert not [name for name in names if "lk-sleeper" in name]


def test_changes_are_an_answer_too(answered):
    text = "answer = {'fixes': ('a', 'b'), 'num_workers': 4}"
    assert answered(text).answer == {"fixes": ("a", "b"), "num_workers": 4}


def test_a_flood_is_dropped(answered, tmp_path):
    begin = time.monotonic()
    text = "for _ in range(50): print('x' * 2**20)\n" + SOLUTION
    assert answered(text).answer == lk.Pipeline(num_workers=4)
    assert time.monotonic() - begin < 60


def test_files_without_end_are_refused(answered):
    text = (
        "for i in range(99):\n    open(f'f{i}', 'wb').write(bytes(60 * 2**20))\n    time.sleep(.2)"
    )
    assert answered(text).verdict == "refused"


def test_memory_without_end_is_refused(answered):
    assert answered("x = bytearray(8 * 2**30)").why.startswith("MemoryError")


@pytest.mark.parametrize(
    ("text", "verdict", "why"),
    [
        ("raise SystemExit('bye')", "crashed", "SystemExit: bye"),
        ("answer = helper()", "crashed", "NameError"),
        ("answer = (", "crashed", "SyntaxError"),
        ("answer = 5", "not yet", "not int"),
        ("answer = None", "no answer", "No answer yet"),
        ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
        ("import nothing_of_the_kind", "crashed", "ModuleNotFoundError"),
    ],
)
def test_what_went_wrong_is_said(answered, text, verdict, why):
    handed = answered(text)
    assert handed.verdict == verdict and why in handed.why, handed


@pytest.mark.parametrize(
    "header",
    ["", "{", "[]", '{"what": "pipeline"}', '{"what": "pipeline", "pipeline": {"steps": -1}}',
     '{"what": "pipeline", "pipeline": 3}', '{"what": "function"}', '{"what": []}', "[" * 9999,
     '{"what": "passed"}', "x" * 2**17],
)  # fmt: skip
def test_a_forged_answer_is_none(answered, header):
    text = f"""for fd in range(3, 64):
    try: os.write(fd, {header[:200]!r}.encode() * {max(1, len(header) // 200)} + b'\\n')
    except OSError: pass
os._exit(0)
"""
    assert answered(text).verdict == "crashed"


def test_the_folder_comes_along_without_notebooks_and_links(answered, tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice" / "link").symlink_to("/etc/passwd")
    files = {"mine.py": "def knobs(): return {'num_workers': 4}", "bob.ipynb": "{}"}
    text = "import mine\nassert sorted(os.listdir()) == ['mine.py'], os.listdir()\n"
    text += "answer = lk.Pipeline(**mine.knobs())\nopen('own', 'w').write('x')"
    assert answered(text, files=files).answer == lk.Pipeline(num_workers=4)
    assert not (tmp_path / "alice" / "own").exists()


# -- reading notebooks --------------------------------------------------------------------------


def test_imports_come_from_the_whole_notebook_and_nothing_else_is_run(tmp_path):
    setup = "%matplotlib inline\nimport labkit as kit\nfrom nowhere import x\nraise SystemExit"
    cells = 'answer = kit.Pipeline(width=2)\n!ls\nkit.challenge("00-first").check(answer)'
    path = notebook(tmp_path, cells, setup=setup)
    assert run_cells(path, read(path).challenges[0], 20.0).answer == lk.Pipeline(width=2)


def test_an_answer_cell_and_a_test_cell_as_in_nbgrader(tmp_path):
    path = notebook(tmp_path, SOLUTION, f"assert {CHECK_FIRST}", WHOLE, f"assert {CHECK_BREAK}")
    content = json.loads(path.read_text())
    for cell in content["cells"][1:]:
        is_test = "check" in "".join(cell["source"])
        cell["metadata"] = {"nbgrader": {"solution": not is_test, "grade": is_test}}
    path.write_text(json.dumps(content))
    found = read(path)
    assert [each.key for each in found.challenges] == [FIRST, BREAK]
    assert [len(each.cells) for each in found.challenges] == [2, 2]
    assert run_cells(path, found.challenges[0], 20.0).answer == lk.Pipeline(num_workers=4)


def test_other_answers_of_nbgrader_stay_out(tmp_path, answered):
    stub = "# YOUR CODE HERE\nraise NotImplementedError()"
    path = notebook(tmp_path, stub, "assert 1", stub, SOLUTION, f"assert {CHECK_FIRST}")
    content = json.loads(path.read_text())
    kinds = ((True, False), (False, True), (True, True), (True, False), (False, True))
    for cell, (solution, is_graded) in zip(content["cells"][1:], kinds, strict=True):
        cell["metadata"] = {"nbgrader": {"solution": solution, "grade": is_graded}}
    path.write_text(json.dumps(content))
    assert read(path).challenges[0].cells == (SOLUTION, f"assert {CHECK_FIRST}")
    assert answered(stub).verdict == "no answer"


BAD = {
    "text": "hello", "list": "[]", "nothing": "", "no cells": "{}", "deep": "[" * 100_000,
    "cells": '{"cells": 3}', "source": '{"cells": [{"cell_type": "code", "source": 3}]}',
    "bytes": b"\xff\xfe", "huge cell": json.dumps(
        {"cells": [{"cell_type": "code", "source": "x" * 99_999}]}),
    "many": json.dumps({"cells": [{}] * 3000}), "number": '{"cells": ' + "9" * 9999 + "}",
}  # fmt: skip


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_what_is_no_notebook_says_so_in_a_sentence(tmp_path, content):
    path = tmp_path / "n.ipynb"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadNotebook, match="is no|has"):
        read(path)


def test_odd_files_are_no_notebooks(tmp_path):
    (tmp_path / "link.ipynb").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo.ipynb")
    grades = grade([tmp_path / "link.ipynb", tmp_path / "fifo.ipynb", tmp_path / "gone.ipynb"])
    assert [row.why for row in grades.bad] == [
        "cannot be read: is a link", "is no file", "cannot be read: No such file or directory",
    ]  # fmt: skip


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
    with pytest.raises(ValueError, match="no notebook below"):
        grade([_empty(tmp_path)])


def _empty(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_trouble_of_ours_costs_one_row_too(tmp_path, monkeypatch):
    path = notebook(tmp_path, SOLUTION + "\n" + CHECK_FIRST)
    monkeypatch.setattr("labkit.course.cell_process.run", lambda *_: 1 / 0)
    assert grade([path]) == (
        Row(
            str(path),
            FIRST,
            "crashed",
            "It could not be graded: ZeroDivisionError: division by zero",
        ),
    )


def test_grading_needs_no_torch_here():
    code = "import sys, labkit.course.grading; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
