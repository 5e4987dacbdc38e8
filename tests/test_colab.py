"""The cell that installs labkit on Colab and Kaggle, and how it comes into the notebooks."""

import importlib.metadata
import sys
from types import SimpleNamespace

import colab
import nbformat
import pytest

HERE = "someone/labkit"
INSTALL = 'pip install -q "labkit @ git+https://github.com/someone/labkit"'


@pytest.mark.parametrize(
    "service, widgets, repository, did",
    [
        ("", "8.1.5", HERE, []),  # one's own machine
        ("Kaggle", "8.1.5", HERE, [INSTALL]),
        ("Colab", "8.1.5", HERE, [INSTALL, "manager"]),  # that shows the widgets of packages
        ("Colab", "7.7.1", HERE, [INSTALL, "restart the session"]),
        ("Colab", "8.1.5", colab.PLACEHOLDER, ["write NAME/REPO of your fork"]),
    ],
)
def test_the_cell_installs_on_a_service_or_says_what_is_to_be_done_and_nothing_elsewhere(
    service, widgets, repository, did, monkeypatch
):
    done = []
    names = {}

    def magic(*words):  # puts variables in, as IPython does
        done.append(" ".join(words).format_map(names))

    names["get_ipython"] = lambda: SimpleNamespace(run_line_magic=magic)
    if service == "Colab":
        output = SimpleNamespace(enable_custom_widget_manager=lambda: done.append("manager"))
        monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace(output=output))
    if service == "Kaggle":
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: widgets)
    try:
        exec(colab.plain(colab.CELL.format(repository=repository)), names)
    except SystemExit as end:
        done.append(str(end))
    for said, expected in zip(done, did, strict=True):
        assert expected in said


def test_each_notebook_has_the_cell_and_its_badge_once_and_they_follow_the_repository():
    for path in sorted((colab.ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        there = nbformat.writes(notebook)
        for repository in (HERE, colab.PLACEHOLDER):
            colab.add(notebook, repository, path.name)
            page = f"github/{repository}/blob/main/notebooks/{path.name}"
            assert f"(https://colab.research.google.com/{page})" in notebook.cells[0].source
        assert nbformat.writes(notebook) == there


def test_what_is_installed_there_brings_no_jupyterlab():
    project = (colab.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    base = project.partition("\ndependencies = [")[2].partition("]\n")[0]
    assert "ipywidgets" in base and "jupyter" not in base
