"""Execute notebooks and store their outputs: `python maintain/execute.py [NOTEBOOK ...]`.

On a quiet machine, one at a time, in the notebook's folder. Each cell starts once the machine is
idle: a reader pauses between cells too, and what the previous cell left running (its run's W&B
logger, say) must not be measured with it. A cell that raises leaves the file as it was.
`LABKIT_QUICK` is not set: the stored outputs are those of runs of full length.

`--into FOLDER` is for where time is short: FOLDER has the notebook as far as it has been executed
after each cell, so that a time limit costs the cell that was running and no other. A cell that
raises shows its error, and the next one begins; the exit code is 1 then. With `--quick` too, only
the first two code cells are executed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
LONGEST_CELL_S = 300
LONGEST_CELL_IN_HASTE_S = 120
RESTING = 10.0  # percent of all cores
LONGEST_REST_S = 20
QUICK_CELLS = 2


def rest(**_cell: object) -> None:
    """Wait until the machine is idle, but no longer than `LONGEST_REST_S`."""
    for _second in range(LONGEST_REST_S):
        if psutil.cpu_percent(interval=1) < RESTING:
            return


def execute(path: Path, into: Path | None, quick: bool) -> bool:
    """Run the notebook at `path`, and write it back, or as far as it is into the folder `into`.

    Return whether all cells ran.
    """
    notebook = nbformat.read(path, as_version=4)
    metadata = notebook.metadata.copy()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if quick:
        notebook.cells = code[:QUICK_CELLS]
    failed = []

    def keep(cell: nbformat.NotebookNode, execute_reply: dict, **_more: object) -> None:
        if execute_reply["content"]["status"] != "ok":
            failed.append(cell.id)
            print(f"{path.name}: cell {cell.id} failed", flush=True)
        part = (into / path.name).with_suffix(".part")
        nbformat.write(notebook, part)
        part.replace(into / path.name)  # whole, whenever this process is killed

    how = {"timeout": LONGEST_CELL_S, "on_cell_start": rest}
    if into:
        into.mkdir(parents=True, exist_ok=True)
        for cell in code:
            cell.outputs = []  # those that it was shipped with are of another machine
        how = {"timeout": LONGEST_CELL_IN_HASTE_S, "interrupt_on_timeout": True}
        how |= {"allow_errors": True, "on_cell_executed": keep}
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, kernel_name="python3", store_widget_state=False, resources=place, **how
    ).execute()
    if not into:
        notebook.metadata = metadata
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--into", type=Path, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    all_did = True
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("LABKIT_HOME", home)
        for path in options.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
            print(path, flush=True)
            all_did &= execute(path, options.into, options.quick)
    return int(not all_did)


if __name__ == "__main__":
    sys.exit(main())
