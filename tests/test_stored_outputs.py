"""What the notebooks ship: every one executed whole and in order, true to the prose beside it.

A check returns what is wrong, or whether anything is.
"""

import json
import re

import pytest
from test_notebooks import NOTEBOOKS, source

from labkit.diagnosis.findings import BOTTLENECKS

MOST_CELLS = 40
MOST_BYTES = 480_000
SAME_WITHIN = 1.1  # two recordings of what is one quantity
MACHINE = re.compile(r"\b[A-Z][\w ]+\((?:CPU, model|GPU)[^\n<]*(?=, torch \d)")
PEAKS = [  # bandwidth, FP32
    re.compile(r"bandwidth [^\n\d]*([\d.]+) ([GT])B/s|, ([\d.]+) ([GT])B/s, measured here"),
    re.compile(r"fp32 [^\n\d]*([\d.]+) ([GT])FLOP/s|\(of ([\d.]+) ([GT])FLOP/s in FP32"),
]
GIGA = {"G": 1, "T": 1000}
VERDICT = re.compile("|".join(rf"[`\"]{name}[`\"]" for name in set(BOTTLENECKS) - {"unsure"}))
GUESSED = re.compile(r"lk\.guess\(\"[^\"]*\", (\w+)\)")  # the name of what is handed over
# what a device cannot do may be left out; what an extra would have run may not
MISSING = re.compile(
    r"not installed|pip install '?gpu-labkit\["
    r"|\bskipped:(?!.*\b(?:none here|has none|no fast path here))"
    "|Traceback|LABKIT_TRACES|reference numbers, not read from"
)


def printed(cell):
    """Return all text that a code cell has printed or shown."""
    texts = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        parts = [output.get("text", []), *(v for k, v in data.items() if k.startswith("text/"))]
        texts += ["".join(part) for part in parts]
    return "\n".join(texts)


def all_printed(cells):
    return "\n".join(printed(cell) for cell in cells if cell["cell_type"] == "code")


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def length(cells, path):
    return len(cells) > MOST_CELLS or path.stat().st_size > MOST_BYTES


def order(cells, path):
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    return counts != list(range(1, len(counts) + 1))


def unsure(cells, path):
    """Find verdicts withheld where the cell or the prose beside it names one."""
    found = []
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code" and re.search(r"\bunsure\b", printed(cell)):
            near = cells[max(number - 1, 0) : number + 2]
            prose = [each for each in near if each["cell_type"] == "markdown"]
            found += [each for each in (cell, *prose) if VERDICT.search(source(each))]
    return found


def whole(cells, path):
    """Find what an extra, or a working run, would have shown."""
    return MISSING.findall(all_printed(cells))


def blank(cells, path):
    """Find guesses that are made already."""
    code = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "code")
    made = rf"^(?:{'|'.join({*GUESSED.findall(code), 'my_[a-z_]+'})})\b[\w, ]*= [-\d\"'\[].*"
    return re.findall(made, code, re.MULTILINE)


def held(cells, path):
    """Find claims that hold on any machine (`exact=True`) and did not in what is stored."""
    found = []
    for cell in cells:
        said = printed(cell) if cell["cell_type"] == "code" else ""
        for claim in re.findall(r"^✗ not on this machine: (.*)", said, re.MULTILINE):
            its_call = source(cell).partition(claim)[2].partition("lk.check(")[0]
            found += [claim] * ("exact=True" in its_call)
    return found


CHECKS = (length, order, unsure, whole, blank, held)


def test_all_notebooks_were_recorded_on_one_machine_with_one_bandwidth_and_one_roof():
    text = "\n".join(all_printed(cells_of(path)) for path in NOTEBOOKS)
    assert len(set(MACHINE.findall(text))) == 1
    for pattern in PEAKS:
        hits = [filter(None, hit) for hit in pattern.findall(text)]
        found = [float(number) * GIGA[prefix] for number, prefix in hits]
        assert len(found) >= 2 and max(found) < SAME_WITHIN * min(found)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_stored(path, check):
    assert not check(cells_of(path), path)


def test_each_check_finds_what_it_is_for(tmp_path):
    said = "unsure; triton is not installed\n✗ not on this machine: one is one"
    code = {
        "cell_type": "code",
        "source": ["my_guess = 3\nlk.check('one is one', 1 == 1, exact=True)"],
        "execution_count": 7,
        "outputs": [{"text": [said]}],
    }
    prose = {"cell_type": "markdown", "source": ["On top is `input`."]}
    (path := tmp_path / "book.ipynb").write_bytes(bytes(MOST_BYTES + 1))
    assert all(check([prose, code], path) for check in CHECKS)
