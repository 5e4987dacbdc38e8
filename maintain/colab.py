"""Let a fork's notebooks be opened on Colab and Kaggle: `python maintain/colab.py NAME/REPO`.

Each notebook gets a badge under its title, and lines at the head of its first code cell that
install labkit there, and nowhere else; the README gets the badge. NAME/REPO is the fork on GitHub.
Run it again whenever the repository has moved: what is there already is replaced. `--remove` takes
all of it out again.
"""

import argparse
import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[\w.-]+", re.ASCII)  # GitHub's owners and names
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
    old_widgets = importlib.metadata.version("ipywidgets").startswith("7.")
    %pip install -q "gpu-labkit @ git+https://github.com/{repository}"
    if old_widgets:
        raise SystemExit("ipywidgets is new now: restart the session, then run this cell again.")
if on_colab:
    from google.colab import output

    output.enable_custom_widget_manager()
"""
LAST_LINE = CELL.splitlines()[-1]


def with_badges(text: str, repository: str | None, name: str) -> str:
    """Return Markdown that begins with a title, with the badges of a notebook under it, or none."""
    text = BADGES_THERE.sub("", text)
    if repository is None:
        return text
    title, _, rest = text.partition("\n")
    badges = BADGES.format(repository=repository, name=name)
    return f"{title}\n\n{badges}\n\n{rest.lstrip()}"


def own_code(source: str) -> str:
    """Return a first code cell's source without what installs labkit."""
    return source.rpartition(LAST_LINE)[2].lstrip()


def mark(notebook: nbformat.NotebookNode, repository: str | None, name: str) -> None:
    """Give a notebook its badges and its installation for `repository`; without one, take both."""
    title = notebook.cells[0]
    title.source = with_badges(title.source, repository, name)
    setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
    setup.source = own_code(setup.source)
    if repository:
        setup.source = f"{CELL.format(repository=repository)}\n{setup.source}"


def fork(text: str) -> str:
    """Check a repository's name, as argparse's `type`."""
    if not REPOSITORY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no repository on GitHub: write NAME/REPO")
    return text


def main() -> None:
    """Mark the notebooks and the README for a fork, or take the marks out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("repository", nargs="?", type=fork, metavar="NAME/REPO")
    which.add_argument("--remove", action="store_true", help="take badges and code out again")
    repository = parser.parse_args().repository
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        mark(notebook, repository, path.name)
        nbformat.write(notebook, path)
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_badges(text, repository, "00_start_here.ipynb"), encoding="utf-8")


if __name__ == "__main__":
    main()
