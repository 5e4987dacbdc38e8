"""The notebooks as they are committed: the widget first, few words, outputs fit to publish.

Every one is executed whole and in order, true to the prose beside it.

Each also has a row in the README's table and a place on the map of 00 (below), one to four
challenges with a cheat for each in `wrong_answers.py` (`test_challenges.py`), and a place in a
slice of `maintain/first_gpu/` (`test_maintain.py`). In a fork `maintain/colab.py` writes a badge,
and lines at the head of the first cell.
"""

import getpass
import json
import re
import socket
from pathlib import Path
from statistics import median

import colab
import pytest

from labkit.diagnosis.findings import BOTTLENECKS

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
RUNS = re.compile(r"lk\.(run|sweep|distributed)\(")
WORDS, WORDS_IN_ALL = 1_700, 22_000  # of Markdown
CELLS = 30
LONGEST_CELL, MEDIAN_CELL = 30, 8  # lines of code; the median without blank ones
NAMES_OF_LK = 20  # in the whole course
WIDGET = re.compile(r"lk\.(measure|panel)\(|VBox\(")
WIDGET_WITHIN, WORDS_BEFORE_IT = 2, 150  # code cells, words of Markdown
STAMP = re.compile(r"print\((lk\.machine\(\)|machine)\.line\)")
STAMP_WITHIN = 2  # code cells
PATH = re.compile(  # in JSON, where a backslash is two
    r"""(?<![\w.:/])/(home|root|Users|tmp|work|usr|opt|var|mnt)/|[A-Za-z]:\\\\\w"""
)
LINK = re.compile(r"\]\((?!https?://|#|attachment:)([^)\s]+)\)")
MOST_BYTES = 550_000
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


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return json.loads(request.param.read_text(encoding="utf-8"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell):
    return "".join(cell["source"])


def test_cells_are_short_and_every_code_cell_follows_prose(notebook):
    own = [colab.own_code(source(cell)) for cell in code_cells(notebook)]
    assert max(len(text.splitlines()) for text in own) <= LONGEST_CELL
    kinds = [cell["cell_type"] for cell in notebook["cells"]]
    assert kinds[0] == "markdown" and "code code" not in " ".join(kinds)


def words(cells):
    return sum(len(source(cell).split()) for cell in cells if cell["cell_type"] == "markdown")


def folded(cell):
    return cell["metadata"].get("jupyter", {}).get("source_hidden", False)


def test_a_notebook_is_short(notebook):
    shown = [colab.own_code(source(cell)) for cell in code_cells(notebook) if not folded(cell)]
    lines = [sum(bool(line.strip()) for line in text.splitlines()) for text in shown]
    assert len(notebook["cells"]) <= CELLS and words(notebook["cells"]) <= WORDS
    assert median(lines) <= MEDIAN_CELL, lines


def test_the_course_is_short_and_asks_for_few_names():
    books = [json.loads(path.read_text(encoding="utf-8")) for path in NOTEBOOKS]
    assert sum(words(book["cells"]) for book in books) <= WORDS_IN_ALL
    code = "\n".join(source(cell) for book in books for cell in code_cells(book))
    assert len({*re.findall(r"\blk\.(\w+)", code)}) <= NAMES_OF_LK


def test_a_widget_comes_first(notebook):
    cells = notebook["cells"]
    code = [i for i, cell in enumerate(cells) if cell["cell_type"] == "code"]
    first = next(i for i in code if WIDGET.search(source(cells[i])))
    assert code.index(first) < WIDGET_WITHIN and words(cells[:first]) <= WORDS_BEFORE_IT


def test_the_claims_stand_in_one_folded_cell(notebook):
    checks = [cell for cell in code_cells(notebook) if "lk.check(" in source(cell)]
    assert len(checks) == 1 and folded(checks[0])


def test_the_machine_is_stamped_before_anything_runs(notebook):
    sources = [source(cell) for cell in code_cells(notebook)]
    stamp = next(i for i, text in enumerate(sources) if STAMP.search(text))
    assert stamp < STAMP_WITHIN and not any(RUNS.search(text) for text in sources[:stamp])


def test_runs_leave_their_figure_in_the_notebook(notebook):
    cells = [cell for cell in code_cells(notebook) if RUNS.search(source(cell))]
    cells = [cell for cell in cells if not re.search("wait=|def ", source(cell))]
    for cell in cells:
        kinds = [kind for output in cell["outputs"] for kind in output.get("data", {})]
        assert "image/png" in kinds, source(cell)


def test_outputs_are_complete_and_name_no_error_path_host_or_user(notebook):
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    assert all(output["output_type"] != "error" for output in outputs)
    private = [re.escape(name) for name in (socket.gethostname(), getpass.getuser())]
    names = re.compile("|".join(rf"\b{name}\b" for name in private if len(name) > 3) or r"(?!)")
    for output in outputs:
        data = {kind: v for kind, v in output.get("data", {}).items() if kind != "image/png"}
        text = json.dumps(output | {"data": data})
        assert not PATH.search(text) and not names.search(text), text


def test_cells_that_depend_on_hardware_are_not_compared(notebook):
    for cell in code_cells(notebook):
        tags = {"nbval-ignore-output", "nbval-check-output"} & {*cell["metadata"].get("tags", [])}
        kinds = [kind for output in cell["outputs"] for kind in output.get("data", {})]
        assert len(tags) <= 1 and ("image/png" not in kinds or "nbval-ignore-output" in tags)


def test_the_readme_and_the_first_notebook_lead_to_every_other():
    first, *others = NOTEBOOKS
    readme = (first.parents[1] / "README.md").read_text(encoding="utf-8")
    start = first.read_text(encoding="utf-8")
    for path in others:
        assert f"| {path.stem[:2]} | [" in readme and f"/{path.name})" in readme, path.name
        assert f"({path.name})" in start, f"link {path.name} in {first.name}"


def test_links_lead_to_what_the_course_has_in_a_copy_too(notebook):
    prose = [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    links = LINK.findall("\n".join(prose))
    course = NOTEBOOKS[0].parent
    files = [(course / link.split("#")[0]).resolve() for link in links]
    assert not [file for file in files if not (file.exists() and course in file.parents)]


# -- what is stored: a check returns what is wrong, or whether anything is -------------------------


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
    return path.stat().st_size > MOST_BYTES


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
