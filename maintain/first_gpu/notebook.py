"""Execute a notebook where time is short: `python maintain/first_gpu/notebook.py NOTEBOOK FOLDER`.

FOLDER has the notebook as far as it has been executed after each cell, so that a time limit costs
the cell that was running and no other. A cell that raises, or takes longer than LONGEST_CELL_S,
shows its error, and the next one begins; the exit code is 1 then. `--quick` executes the first two
code cells only.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

LONGEST_CELL_S = 120
QUICK_CELLS = 2


class Execution:
    """A notebook that is being executed, and the file that shows how far it is."""

    def __init__(self, notebook: nbformat.NotebookNode, target: Path):
        self.notebook = notebook
        self.target = target
        self.failed: list[str] = []  # ids of cells

    def write(self, cell: nbformat.NotebookNode, execute_reply: dict, **_more: object) -> None:
        """Write the notebook, of which `cell` has just been executed."""
        if execute_reply["content"]["status"] != "ok":
            self.failed.append(cell.id)
            print(f"{self.target.name}: cell {cell.id} failed", flush=True)
        part = self.target.with_suffix(".part")
        nbformat.write(self.notebook, part)
        part.replace(self.target)  # whole, whenever this process is killed

    def run(self, folder: Path) -> int:
        """Execute all cells in `folder`; return the exit code."""
        client = NotebookClient(
            self.notebook,
            timeout=LONGEST_CELL_S,
            interrupt_on_timeout=True,
            allow_errors=True,
            kernel_name="python3",
            store_widget_state=False,
            on_cell_executed=self.write,
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
        return 1 if self.failed else 0


def main(source: Path, folder: Path, quick: bool) -> int:
    """Execute the notebook at `source` into `folder`."""
    os.environ["LABKIT_NO_SCORE"] = "1"
    notebook = nbformat.read(source, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs = []  # those that it was shipped with are of another machine
    if quick:
        notebook.cells = code[:QUICK_CELLS]
    return Execution(notebook, folder / source.name).run(source.parent)


if __name__ == "__main__":
    places = [Path(word) for word in sys.argv[1:] if word != "--quick"]
    sys.exit(main(*places, quick="--quick" in sys.argv))
