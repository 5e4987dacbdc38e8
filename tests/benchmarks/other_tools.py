"""What TraceML and gpuprof say of the scripts that `user_loops.py` scores, beside their labels.

    pip install --target FOLDER traceml-ai==0.5.0 gpuprof==0.7.1
    python tests/benchmarks/other_tools.py FOLDER [--half score|tune] [--only NAME]

Each is set up as its documentation says: TraceML through `traceml run`, with `traceml.init()` and
`trace_step(model)` put into the training loop (not into a Trainer, which it hooks itself); gpuprof
around the script, `with gpuprof.profile(...)`. Only the coarse class is compared, which is all that
they name: a verdict of theirs counts as the bottleneck in `CLASSES`, any other as none.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from user_loops import SCRIPTS, bare, label

CLASSES = {  # by what their text begins with; "no clear bottleneck" is right of a healthy loop
    "INPUT-BOUND": "input", "COMPUTE-BOUND": "compute", "RESIDUAL-HEAVY": "host",
    "NO CLEAR": "compute", "NORMAL": "compute", "waiting on the loader": "input",
    "Dataloader stall": "input", "nothing": "compute",
}  # fmt: skip
WRAPPER = """import runpy
import gpuprof
with gpuprof.profile("run"):
    runpy.run_path({path!r}, run_name="__main__")
"""


class TraceSteps(ast.NodeTransformer):
    """Puts the body of the innermost loop that calls `backward()` into `trace_step`."""

    def __init__(self, model: str):
        self.model = model

    def visit_For(self, node: ast.For) -> ast.For:
        """Wrap a loop, after those within it."""
        self.generic_visit(node)
        within = [n for n in ast.walk(node) if isinstance(n, ast.For) and n is not node]
        if _trains(node) and not any(map(_trains, within)):
            step = ast.parse(f"traceml.trace_step({self.model})", mode="eval").body
            node.body = [ast.With([ast.withitem(step, None)], node.body)]
        return node


def _trains(node: ast.AST) -> bool:
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr == "backward" for f in calls)


def traced(text: str) -> str:
    """Return a script with TraceML put into it."""
    tree = ast.parse(text)
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    models = [f.value for f in calls if isinstance(f, ast.Attribute) and f.attr == "parameters"]
    tree = TraceSteps(ast.unparse(models[0]) if models else "None").visit(tree)
    at = next(i for i, node in enumerate(tree.body)
              if not isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr)))  # fmt: skip
    head = "import traceml_ai as traceml\ntraceml.init(mode='auto')"
    tree.body[at:at] = ast.parse(head).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def said_by_traceml(text: str, folder: Path, tools: Path) -> str:
    """Return TraceML's verdict of a script, and why."""
    script = folder / "train.py"
    script.write_text(text if "Trainer(" in text else traced(text))
    out = _run([tools / "bin" / "traceml", "run", script], folder, tools)
    found = [re.search(rf"{name}: ([^\n|]*)", out) for name in ("Verdict", "Why")]
    return " - ".join(" ".join(each[1].split()) for each in found if each) or "none"


def said_by_gpuprof(text: str, folder: Path, tools: Path) -> str:
    """Return gpuprof's gravest finding of a script."""
    (folder / "plain.py").write_text(text)
    (folder / "wrapped.py").write_text(WRAPPER.format(path=str(folder / "plain.py")))
    out = _run([folder / "wrapped.py"], folder, tools)
    graver = re.findall(r"\[(?:HIGH|MED)\]\s*([^\n]*)", out)
    return graver[0] if graver else "nothing" if "[LOW]" in out or "gpuprof" in out else "none"


def _run(command: list, folder: Path, tools: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(tools)}
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    return done.stdout + done.stderr


def main() -> None:
    """Run both tools on each script, print what they say, and how often the class is right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tools", type=Path)
    parser.add_argument("--half", default="score", choices=("tune", "score"))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    right: dict[str, list[bool]] = {"TraceML": [], "gpuprof": []}
    for path in sorted(SCRIPTS.glob("*.py")):
        truth = label(path.read_text())
        if truth["half"] != options.half or options.only not in path.stem:
            continue
        print(f"{path.stem}: is {truth['bottleneck']}/{truth['cause']}", flush=True)
        for tool, ask in (("TraceML", said_by_traceml), ("gpuprof", said_by_gpuprof)):
            with tempfile.TemporaryDirectory() as folder:
                said = ask(bare(path.read_text()), Path(folder), options.tools.resolve())
            named = next((name for text, name in CLASSES.items() if text in said), "none")
            right[tool].append(named == truth["bottleneck"])
            print(f"    {tool:8} {'right' if right[tool][-1] else 'WRONG'}: {said}", flush=True)
    for tool, marks in right.items():
        print(f"{tool}: right class {sum(marks)} of {len(marks)}, no cause, no line")


if __name__ == "__main__":
    main()
