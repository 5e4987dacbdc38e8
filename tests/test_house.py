"""The house: imports point down, never in a circle; the recipes of CONTRIBUTING.md hold."""

import ast
import inspect
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import labkit as lk
from labkit import Pipeline
from labkit.diagnosis import findings, judge
from labkit.diagnosis.findings import BOTTLENECKS, Remedy, cause, loss
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.wording import with_advice
from labkit.knobs import declares_knobs, knob
from labkit.results.script import changed_lines
from labkit.spec import KNOBS, LOADER_KNOBS, Job
from labkit.view.panel import control

ROOT = Path(__file__).parents[1]
ROOMS = (
    "stamps",
    "process",
    "instruments",
    "bench",
    "watching",
    "results",
    "prediction",
    "traces",
    "diagnosis",
    "tuning",
    "view",
    "course",
)
ABOVE = {"traces": ("view",)}  # a trace that is read is a result: it draws itself
LIVE = ("api", "library")  # which stand on the rooms up to the diagnosis, and on the figures
LOWEST = ("knobs.py", "orders.py", "quotas.py", "spec.py", "text.py")
INSIDE = {  # what tests and tools import besides `lk`, rooms or modules, and why that is not enough
    "logs, rings and clocks as a writer that was killed leaves them": "stamps",
    "planted faults, kills, and what they leave": "api process results.saving",
    "machines, drivers and containers that are not here": (
        "instruments quotas results.device_peaks results.hardware"
    ),
    "the loop on a stand-in GPU, and what is sent to it": "bench",
    "the script under watch, in whose process the test is": "watching hf view.watch_live",
    "evidence that no log here holds, and code to paste": (
        "diagnosis results.core_use results.failures"
    ),
    "searches on made-up rates": "tuning",
    "the trace of an x-ray, which only a verdict reads": "traces.read",
    "answers and cheats": "course",
    "hostile files, secrets, and a site that is not here": (
        "results.privacy results.templates text "
        "traces.events traces.file traces.perfetto traces.public"
    ),
    "what is drawn without a browser, and typed without a terminal": (
        "__main__ view.display view.live view.panel view.running view.style view.watch_command"
    ),
    "tables that are held against files": "knobs spec library results.script",
}
FILES = sorted((ROOT / "labkit").rglob("*.py"))


def test_imports_point_down_and_in_no_circle():
    """Ruff has what stands at the top of a module; this has what a method imports, too."""
    for path in FILES:
        room = path.relative_to(ROOT / "labkit").parts[0]
        if room not in (*LOWEST, *ROOMS):
            continue
        place = ROOMS.index(room) if room in ROOMS else -1
        above = {*ROOMS[place + 1 :]} - {*ABOVE.get(room, ())}
        above |= {*LIVE} if room in (*LOWEST, *ROOMS[: ROOMS.index("tuning")]) else set()
        text = path.read_text(encoding="utf-8")
        reached = set(re.findall(r"^ *from labkit\.(\w+)", text, re.MULTILINE))
        assert not reached & above, path


def test_no_module_that_imports_the_live_results_is_imported_by_them():
    """Those that only a figure needs stand below `labkit.api`, and the views of it above."""
    imports = {}
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        imports[name] = set(re.findall(r"^ *from (labkit\.[\w.]+)", text, re.MULTILINE))
    below = {"labkit.api"}
    while more := {name for each in below for name in imports.get(each, ())} - below:
        below |= more
    assert not [name for name in below if "labkit.api" in imports.get(name, ())]


def test_an_editor_finds_every_public_name_where_python_does():
    tree = ast.parse(Path(lk.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]  # for type checkers
    assert {alias.name: node.module for node in block.body for alias in node.names} == lk._HOMES


def imported(path):
    """Yield what a file imports of labkit: names, or modules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_tests_and_tools_go_through_the_public_names_but_for_what_has_a_reason():
    inside = tuple(f"{each}." for each in " ".join(INSIDE.values()).split())
    for path in [*(ROOT / "tests").glob("*.py"), *(ROOT / "maintain").rglob("*.py")]:
        ours = [name[7:] for name in imported(path) if name.startswith("labkit.")]
        others = [name for name in ours if not f"{name}.".startswith(inside)]
        assert {*others} <= {*lk._HOMES}, path


def recipe(heading):
    """Return the block of Python below a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.search(rf"\*\*{heading}\*\*.*?```python\n(.*?)```", text, re.DOTALL).group(1)


@pytest.mark.slow
def test_an_experiment_is_a_function():
    exec(recipe("An experiment"), names := {"torch": torch, "__name__": "__main__"})
    rows = lk.measure(names["sums"], n=[1000], device="cpu").rows
    assert rows["gib_s"][0] == pytest.approx(4000 / 2**30 / (rows["ms"][0] / 1e3))


def test_a_knob_is_one_line():
    line = recipe("A knob").strip()
    names = {"dataclass": dataclass, "declares_knobs": declares_knobs, "knob": knob}
    exec(  # the field stands in a spec of its own: a Pipeline has no use for it yet
        "@declares_knobs\n@dataclass(frozen=True, kw_only=True, repr=False)\n"
        f"class Changed(Pipeline):\n    {line}\n",
        names := names | {"Pipeline": Pipeline, "__name__": __name__},
    )
    Changed = names["Changed"]
    declared = Changed.knobs["weight_decay"]
    assert Changed(weight_decay=0.5).to_dict()["weight_decay"] == declared.parse("0.5") == 0.5
    assert "decay" in control(declared, 0.5).tooltip
    with pytest.raises(ValueError, match="weight_decay=2 is not allowed: use a number from 0 to 1"):
        Changed(weight_decay=2)


def test_a_knob_of_the_loader_says_so_where_it_is_declared():
    assert set(KNOBS) == set(Job.__annotations__) - {"shard"}
    pipeline = Pipeline(batch_size=8, num_workers=2, prefetch_factor=3, persistent_workers=True)
    line = changed_lines({}, pipeline.to_dict())
    assert all(f"{name}={value!r}" in line for name, value in pipeline.changed().items())


def test_a_knob_acts_in_the_bench_and_in_the_script_that_lk_script_prints():
    """Arguments of the DataLoader are read all at once, in both: see above."""
    files = (ROOT / "labkit" / "bench").glob("*.py")
    acts = [path for path in files if path.name != "resolve_config.py"]  # it says why one cannot
    bench = "".join(path.read_text(encoding="utf-8") for path in acts)
    template = (ROOT / "labkit" / "data" / "train.py.jinja").read_text(encoding="utf-8")
    script = " ".join(re.findall(r"\{[{%].*?[%}]\}", template, re.DOTALL))
    for name in KNOBS.keys() - set(LOADER_KNOBS):
        assert re.search(rf"\bjob\.{name}\b", bench), f"nothing in labkit/bench reads job.{name}"
        # a script of one's own has a profiler of one's own
        assert name == "xray" or re.search(rf"\b{name}\b", script), f"no {name} in train.py.jinja"


def test_a_cause_names_the_thresholds_that_it_reads():
    for rule, _ in itertools.chain(*findings.RULES.values()):
        function = getattr(rule, "func", rule)
        said = inspect.getdoc(function)
        for threshold in re.findall(r"limits\.(\w+)", inspect.getsource(function)):
            assert threshold in said, function


def test_a_cause_is_a_function_with_its_page(monkeypatch):
    monkeypatch.setattr(findings, "RULES", {when: [] for when in findings.RULES})
    known = {each.__name__: each for each in (Remedy, loss, cause)} | {"LOSS": findings.LOSS}
    exec(recipe("A cause"), known)
    run = lk.recorded("workers-0")
    evidence = StepTable(run).evidence()
    [finding] = [with_advice(each, evidence, run) for each in judge.by_cost(evidence)]
    assert finding.lost_share == pytest.approx(run.wait_ms / run.step_ms, rel=0.05)
    assert finding.advice.startswith("Try num_workers=4. Expect")
    assert finding.page == "symptoms/too-few-workers.md"
    assert finding.name in BOTTLENECKS
