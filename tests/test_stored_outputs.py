"""What the notebooks ship: every one executed whole and in order, true to the prose beside it.

A check returns what is wrong.
"""

import json
import re

import pytest
from test_notebooks import NOTEBOOKS, source

from labkit.diagnosis.findings import BOTTLENECKS

MOST_CELLS = 40
MOST_BYTES = 450_000
SAME_WITHIN = 1.1  # two recordings of what is one quantity
MACHINE = re.compile(r"\b[A-Z][\w ]+\((?:CPU, model|GPU)[^\n<]*(?=, torch \d)")
PEAKS = {
    "bandwidth": re.compile(
        r"memory [^\n\d]*([\d.]+) ([GT])B/s|, ([\d.]+) ([GT])B/s, measured here"
    ),
    "FP32": re.compile(r"fp32 [^\n\d]*([\d.]+) ([GT])FLOP/s|\(of ([\d.]+) ([GT])FLOP/s in FP32"),
}
GIGA = {"G": 1, "T": 1000}
VERDICT = re.compile("|".join(rf"[`\"]{name}[`\"]" for name in set(BOTTLENECKS) - {"unsure"}))
GUESSED = re.compile(r"lk\.guess\(\"[^\"]*\", (\w+)\)")  # the name of what is handed over
# what a device cannot do may be left out; what an extra would have run may not
MISSING = re.compile(r"not installed|pip install '?labkit\[|\bskipped:(?!.*\bnone here)")


def printed(cell):
    """Return all text that a code cell has printed or shown."""
    texts = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        parts = [output.get("text", []), *(v for k, v in data.items() if k.startswith("text/"))]
        texts += ["".join(part) for part in parts] + output.get("traceback", [])
    return "\n".join(texts)


def beside(cells, number):
    """Return a cell's own source and the prose next to it."""
    near = cells[max(number - 1, 0) : number + 2]
    return "\n".join(source(c) for c in near if c["cell_type"] == "markdown" or c is cells[number])


def length(cells, path):
    found = [f"{len(cells)} cells"] * (len(cells) > MOST_CELLS)
    return found + [f"{path.stat().st_size:,} bytes"] * (path.stat().st_size > MOST_BYTES)


def order(cells, path):
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    return [] if counts == list(range(1, len(counts) + 1)) else [f"executed as {counts}"]


def unsure(cells, path):
    """Find verdicts withheld where the cell or the prose beside it names one."""
    found = []
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code" and re.search(r"\bunsure\b", printed(cell)):
            found += [source(cell)] * bool(VERDICT.search(beside(cells, number)))
    return found


def whole(cells, path):
    """Find what an extra, or a working run, would have shown."""
    bad = [MISSING, re.compile("Traceback|LABKIT_TRACES|reference numbers, not read from")]
    texts = [printed(cell) for cell in cells if cell["cell_type"] == "code"]
    return [hit.group() for text in texts for each in bad if (hit := each.search(text))]


def blank(cells, path):
    """Find guesses that are made already, and cells that only say what comes."""
    code = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "code")
    made = rf"^(?:{'|'.join({*GUESSED.findall(code), 'my_[a-z_]+'})})\b[\w, ]*= [-\d\"'\[].*"
    found = re.findall(made, code, re.MULTILINE)
    prose = [source(cell) for cell in cells if cell["cell_type"] == "markdown"]
    return found + [text for text in prose if re.fullmatch(r"\*\*Run\b[^*]{0,12}\*\*\s*", text)]


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


def all_printed(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join(printed(cell) for cell in cells if cell["cell_type"] == "code")


def test_all_notebooks_were_recorded_on_one_machine_with_one_bandwidth_and_one_roof():
    texts = [all_printed(path) for path in NOTEBOOKS]
    machines = {name for text in texts for name in MACHINE.findall(text)}
    assert len(machines) == 1
    for pattern in PEAKS.values():
        hits = [filter(None, hit) for text in texts for hit in pattern.findall(text)]
        found = [float(number) * GIGA[prefix] for number, prefix in hits]
        assert len(found) >= 3 and max(found) < SAME_WITHIN * min(found)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_stored(path, check):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not check(cells, path)


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
