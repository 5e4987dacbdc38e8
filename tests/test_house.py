"""The house: imports point down, never in a circle; the recipes of CONTRIBUTING.md hold."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import labkit as lk
from labkit.bench.measure import Bench, call
from labkit.diagnosis import rules
from labkit.diagnosis.facts import BOTTLENECKS, Evidence, loss
from labkit.knobs import declares_knobs, knob
from labkit.spec import Pipeline
from labkit.view import controls

ROOT = Path(__file__).parents[1]
LOWEST = ("labkit.knobs", "labkit.quotas", "labkit.spec", "labkit.wiring")
FLOORS = ("process", "bench", "watching", "results", "diagnosis", "tuning", "view", "course")
FILES = sorted((ROOT / "labkit").rglob("*.py"))


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


def imports_of(path):
    """Return the modules of labkit that a file imports, also inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else node.module)
    return found & set(MODULES) - {name_of(path)}


IMPORTS = {name: imports_of(path) for name, path in MODULES.items()}


def floor_of(module):
    """Return how high a module stands: knobs and specs below all folders, the package above."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in FLOORS:
        return FLOORS.index(parts[1])
    return -1 if module in LOWEST else len(FLOORS)


def test_no_import_points_up_or_runs_in_a_circle_and_the_linter_has_no_doors_left_open():
    settled, own = set(), {"labkit"}  # its version and folder: it has run before anything below it
    for module, imported in IMPORTS.items():
        assert not [name for name in imported - own if floor_of(name) > floor_of(module)], module
    while free := {m for m, needs in IMPORTS.items() if needs - own <= settled} - settled:
        settled |= free
    assert not set(MODULES) - settled
    assert not [name for name, path in MODULES.items() if "noqa: TID251" in path.read_text()]
    assert all((ROOT / "labkit" / floor / "ruff.toml").exists() for floor in FLOORS)


def recipe(heading):
    """Return the block of Python below a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.search(rf"\*\*{heading}\*\*.*?```python\n(.*?)```", text, re.DOTALL).group(1)


def test_an_experiment_is_a_function():
    torch = pytest.importorskip("torch")
    exec(recipe("An experiment"), names := {"torch": torch})
    bench = Bench(torch.device("cpu"))
    assert call(names["sums"], {"n": 1000}, bench, {}) is None
    assert bench.rows[0]["bytes"] == 4000


def test_a_knob_is_one_line():
    names = {"dataclass": dataclass, "declares_knobs": declares_knobs, "knob": knob}
    line = recipe("A knob").strip()
    exec(  # the field stands in a spec of its own: a Pipeline has no use for it yet
        "@declares_knobs\n@dataclass(frozen=True, kw_only=True, repr=False)\n"
        f"class Changed(Pipeline):\n    {line}\n",
        names := names | {"Pipeline": Pipeline, "__name__": __name__},
    )
    Changed = names["Changed"]
    declared = Changed.knobs["drop_last"]
    assert Changed(drop_last=True).to_dict()["drop_last"] is True
    assert declared.parse("on") is True
    assert controls.Control(declared, True).value is True
    assert "smaller batch" in controls.Control(declared, True).widget.tooltip
    with pytest.raises(ValueError, match="drop_last=2 is not allowed: use True or False"):
        Changed(drop_last=2)


def test_a_finding_is_yielded_by_a_rule(monkeypatch):
    exec(recipe("A finding"), {"loss": loss}, names := {})
    monkeypatch.setattr(rules, "RULES", (names["without_workers"],))
    run = lk.recorded("workers-0")
    [finding] = rules.rank(Evidence(run).facts())
    assert finding.lost_share == pytest.approx(run.wait_ms / run.step_ms, rel=0.05)
    assert finding.advice.startswith("Try num_workers=4. What it brings is unknown")
    assert finding.name in BOTTLENECKS


def test_a_notebook_is_a_file_that_the_tests_find():
    from test_notebooks import NOTEBOOKS

    numbered = [path for path in NOTEBOOKS if re.fullmatch(r"\d\d_[a-z_]+", path.stem)]
    assert [path.name[:2] for path in numbered] == [f"{n:02}" for n in range(len(numbered))]
