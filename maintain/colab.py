"""Let the notebooks be opened on Colab and Kaggle: `python maintain/colab.py [OWNER/NAME]`.

Each notebook gets a badge under its title and a cell that installs labkit there, and nowhere else;
the README gets the badge. OWNER/NAME is the repository on GitHub. Run it again whenever a notebook
was rewritten, or the repository has moved: what is there already is replaced.
"""

import re
import sys
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "OWNER/labkit"  # until the repository is published
CELL_ID, NOTE_ID = "colab-install", "colab-note"
PAGE = "github.com/{repository}/blob/main/notebooks/{name}"
BADGES = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    f"(https://colab.research.google.com/{PAGE.replace('.com', '', 1)}) "
    "[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]"
    f"(https://kaggle.com/kernels/welcome?src=https://{PAGE})"
)
BADGES_THERE = re.compile(r"^\[!\[Open in Colab\].*\n\n?", re.MULTILINE)
CELL = """\
# Colab and Kaggle: install labkit. Elsewhere this cell does nothing
import importlib.metadata
import os
import sys

on_colab = "google.colab" in sys.modules
if on_colab or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
    old_widgets = importlib.metadata.version("ipywidgets").startswith("7.")
    %pip install -q "labkit @ git+https://github.com/{repository}"
    if old_widgets:
        raise SystemExit("ipywidgets is new now: restart the session, then run this cell again.")
if on_colab:
    from google.colab import output

    output.enable_custom_widget_manager()"""
NOTE = (
    "The cell above is for Colab and Kaggle (there with *Internet* switched on in the settings). "
    "On your own machine it does nothing."
)


def with_badges(text: str, repository: str, name: str) -> str:
    """Return Markdown that begins with a title, with the badges of a notebook under it."""
    title, _, rest = BADGES_THERE.sub("", text).partition("\n")
    badges = BADGES.format(repository=repository, name=name)
    return f"{title}\n\n{badges}\n\n{rest.lstrip()}"


def add(notebook: nbformat.NotebookNode, repository: str, name: str) -> None:
    """Give a notebook its badges, and the cell behind its first one."""
    first, *others = notebook.cells
    others = [cell for cell in others if cell.id not in (CELL_ID, NOTE_ID)]
    was_there = len(others) < len(notebook.cells) - 1
    first.source = with_badges(first.source, repository, name)
    source = CELL.format(repository=repository)
    cell = nbformat.v4.new_code_cell(source, id=CELL_ID)
    cell.metadata.tags = ["nbval-ignore-output"]
    exec(plain(source), {})  # nothing to install here, and nothing to show
    cell.execution_count = 1
    for other in others:
        if not was_there and other.get("execution_count"):
            other.execution_count += 1
            for output in other.outputs:
                if "execution_count" in output:
                    output.execution_count = other.execution_count
    note = nbformat.v4.new_markdown_cell(NOTE, id=NOTE_ID)
    notebook.cells = [first, cell, note, *others]


def plain(source: str) -> str:
    """Return a cell's source as Python, its magic as a call."""
    return TransformerManager().transform_cell(source)


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else PLACEHOLDER
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        found = nbformat.read(path, as_version=4)
        add(found, where, path.name)
        nbformat.write(found, path)
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_badges(text, where, "00_start_here.ipynb"), encoding="utf-8")
