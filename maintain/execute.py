"""Execute notebooks and store their outputs: `python maintain/execute.py [NOTEBOOK ...]`.

On a quiet machine, one at a time, in the notebook's folder. Each cell starts once the machine is
idle: a reader pauses between cells too, and what the previous cell left running (its run's W&B
logger, say) must not be measured with it. A cell that raises leaves the file as it was.
`LABKIT_QUICK` is not set: the stored outputs are those of runs of full length.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
LONGEST_CELL_S = 300
RESTING = 10.0  # percent of all cores
LONGEST_REST_S = 20


def rest(**_cell: object) -> None:
    """Wait until the machine is idle, but no longer than `LONGEST_REST_S`."""
    for _second in range(LONGEST_REST_S):
        if psutil.cpu_percent(interval=1) < RESTING:
            return


def execute(path: Path) -> None:
    """Run all cells of the notebook at `path`, and write it back with their outputs."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=LONGEST_CELL_S,
        kernel_name="python3",
        store_widget_state=False,
        on_cell_start=rest,
        resources={"metadata": {"path": str(path.parent)}},
    )
    metadata = json.loads(json.dumps(notebook.metadata))
    client.execute()
    notebook.metadata = nbformat.from_dict(metadata)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["LABKIT_NO_SCORE"] = "1"
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("LABKIT_HOME", home)
        for name in sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb"))):
            print(name, flush=True)
            execute(Path(name))
