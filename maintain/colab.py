"""Give a repository or a fork of it its address: `python maintain/colab.py NAME/REPO`.

Each notebook gets a badge under its title, and lines at the head of its first code cell that
install labkit on Colab and Kaggle, and nowhere else. The README gets the badge, and its pictures
their full addresses, which PyPI needs; pyproject.toml gets [project.urls], CITATION.cff the
repository. NAME/REPO is the place on GitHub.
Run it again whenever the repository has moved: what is there already is replaced. `--remove` takes
all of it out again.
"""

import argparse
import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
FIRST = "00_start_here.ipynb"
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
import os
import sys

on_colab = "google.colab" in sys.modules
if on_colab or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
    %pip install -q "gpu-labkit @ git+https://github.com/{repository}"
if on_colab:
    from google.colab import output

    output.enable_custom_widget_manager()
"""
LAST_LINE = CELL.splitlines()[-1]
IMAGES_THERE = re.compile(r"\]\(https://raw\.githubusercontent\.com/[^/]+/[^/]+/main/")
IMAGES = "](notebooks/images/"
URLS_THERE = re.compile(r"\[project\.urls\]\n(.+\n)*\n")
URLS = """[project.urls]
Repository = "https://github.com/{repository}"
Changelog = "https://github.com/{repository}/blob/main/CHANGELOG.md"
Issues = "https://github.com/{repository}/issues"

"""
CITED_THERE = re.compile(r"^repository-code: .*\n", re.MULTILINE)
CITED = 'repository-code: "https://github.com/{repository}"\n'


def with_badges(text: str, repository: str | None, name: str) -> str:
    """Return Markdown that begins with a title, with the badges of a notebook under it, or none."""
    text = BADGES_THERE.sub("", text)
    if repository is None:
        return text
    title, _, rest = text.partition("\n")
    badges = BADGES.format(repository=repository, name=name)
    return f"{title}\n\n{badges}\n\n{rest.lstrip()}"


def with_images(text: str, repository: str | None) -> str:
    """Return the README with its pictures at their addresses on GitHub, or beside it."""
    text = IMAGES_THERE.sub("](", text)
    if repository is None:
        return text
    raw = f"](https://raw.githubusercontent.com/{repository}/main/"
    return text.replace(IMAGES, IMAGES.replace("](", raw))


def with_urls(project: str, repository: str | None) -> str:
    """Return pyproject.toml with the addresses of the project, or without."""
    project = URLS_THERE.sub("", project)
    urls = URLS.format(repository=repository) if repository else ""
    return project.replace("[project.scripts]", f"{urls}[project.scripts]")


def with_repository(citation: str, repository: str | None) -> str:
    """Return CITATION.cff with the repository, or without."""
    return CITED_THERE.sub("", citation) + (
        CITED.format(repository=repository) if repository else ""
    )


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
    """Write an address into the notebooks and the project's files, or take it out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("repository", nargs="?", type=fork, metavar="NAME/REPO")
    which.add_argument("--remove", action="store_true", help="take badges and code out again")
    repository = parser.parse_args().repository
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        mark(notebook, repository, path.name)
        nbformat.write(notebook, path)
    for name, changed in (
        ("README.md", lambda text: with_badges(with_images(text, repository), repository, FIRST)),
        ("pyproject.toml", lambda text: with_urls(text, repository)),
        ("CITATION.cff", lambda text: with_repository(text, repository)),
    ):
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(changed(text), encoding="utf-8")


if __name__ == "__main__":
    main()
