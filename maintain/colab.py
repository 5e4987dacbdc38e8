"""Let the notebooks be opened on Colab and Kaggle: `python maintain/colab.py [OWNER/NAME]`.

Each notebook gets a badge under its title, and lines at the head of its first code cell that
install labkit there, and nowhere else; the README gets the badge. OWNER/NAME is the repository on
GitHub. Run it again whenever the repository has moved: what is there already is replaced.
"""

import re
import sys
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "OWNER/labkit"  # until the repository is published
PAGE = "github.com/{repository}/blob/main/notebooks/{name}"
BADGES = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    f"(https://colab.research.google.com/{PAGE.replace('.com', '', 1)}) "
    "[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]"
    f"(https://kaggle.com/kernels/welcome?src=https://{PAGE})"
)
BADGES_THERE = re.compile(r"^\[!\[Open in Colab\].*\n\n?", re.MULTILINE)
CELL = """\
# Colab and Kaggle (with Internet switched on): install labkit. Elsewhere this does nothing
import importlib.metadata
import os
import sys

on_colab = "google.colab" in sys.modules
if on_colab or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
    repository = "{repository}"
    if repository.startswith("OWNER/"):
        raise SystemExit("OWNER/labkit is a placeholder: write NAME/REPO of your fork there.")
    old_widgets = importlib.metadata.version("ipywidgets").startswith("7.")
    %pip install -q "labkit @ git+https://github.com/{{repository}}"
    if old_widgets:
        raise SystemExit("ipywidgets is new now: restart the session, then run this cell again.")
if on_colab:
    from google.colab import output

    output.enable_custom_widget_manager()
"""
LAST_LINE = CELL.splitlines()[-1]


def with_badges(text: str, repository: str, name: str) -> str:
    """Return Markdown that begins with a title, with the badges of a notebook under it."""
    title, _, rest = BADGES_THERE.sub("", text).partition("\n")
    badges = BADGES.format(repository=repository, name=name)
    return f"{title}\n\n{badges}\n\n{rest.lstrip()}"


def add(notebook: nbformat.NotebookNode, repository: str, name: str) -> None:
    """Give a notebook its badges, and the installation at the head of its first code cell."""
    title = notebook.cells[0]
    title.source = with_badges(title.source, repository, name)
    setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
    own = setup.source.rpartition(LAST_LINE)[2].strip()
    setup.source = f"{CELL.format(repository=repository)}\n{own}"


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
