"""The cell that installs labkit on Colab and Kaggle, and how it comes into the notebooks."""

import importlib.metadata
import sys
from pathlib import Path
from types import SimpleNamespace

import colab
import nbformat
import pytest


@pytest.fixture
def run_cell(monkeypatch):
    """Run the cell on a stand-in of a service, with this ipywidgets; return what it did."""

    def run(on_colab=False, on_kaggle=False, widgets="8.1.5", repository="someone/labkit"):
        did = []
        names = {}

        def magic(*words):  # puts variables in, as IPython does
            did.append(" ".join(words).format_map(names))

        output = SimpleNamespace(enable_custom_widget_manager=lambda: did.append("manager"))
        names["get_ipython"] = lambda: SimpleNamespace(run_line_magic=magic)
        if on_colab:
            monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace(output=output))
        if on_kaggle:
            monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
        monkeypatch.setattr(importlib.metadata, "version", lambda _: widgets)
        source = colab.plain(colab.CELL.format(repository=repository))
        try:
            exec(source, names)
        except SystemExit as end:
            did.append(str(end))
        return did

    return run


INSTALL = 'pip install -q "labkit @ git+https://github.com/someone/labkit"'


def test_the_cell_does_nothing_on_ones_own_machine(run_cell):
    assert run_cell() == []


def test_on_colab_it_installs_and_lets_widgets_of_packages_show(run_cell):
    assert run_cell(on_colab=True) == [INSTALL, "manager"]


def test_where_ipywidgets_was_too_old_it_stops_and_asks_for_a_restart(run_cell):
    installed, asked = run_cell(on_colab=True, widgets="7.7.1")
    assert installed == INSTALL and "restart the session" in asked


def test_without_a_public_address_it_installs_nothing_and_asks_for_that_of_a_fork(run_cell):
    [asked] = run_cell(on_colab=True, repository=colab.PLACEHOLDER)
    assert "write NAME/REPO of your fork" in asked


def test_on_kaggle_it_installs(run_cell):
    assert run_cell(on_kaggle=True) == [INSTALL]


def test_the_cell_is_put_into_a_notebook_once_and_follows_the_repository():
    new = nbformat.v4
    first = new.new_markdown_cell("# 00 Start\n\n**Why?**\n\nPress Run.", id="start-00")
    code = new.new_code_cell("1 + 1", id="start-01", execution_count=1)
    notebook = new.new_notebook(cells=[first, code])
    colab.add(notebook, "someone/labkit", "00_start.ipynb")
    once = nbformat.writes(notebook)
    colab.add(notebook, "someone/labkit", "00_start.ipynb")
    assert nbformat.writes(notebook) == once
    assert [cell.id for cell in notebook.cells] == ["start-00", "start-01"]
    assert notebook.cells[1].source.endswith("manager()\n\n1 + 1")
    title, _, badges, _, *rest = notebook.cells[0].source.splitlines()
    assert title == "# 00 Start" and rest == ["**Why?**", "", "Press Run."]
    page = "github/someone/labkit/blob/main/notebooks/00_start.ipynb"
    assert f"(https://colab.research.google.com/{page})" in badges
    colab.add(notebook, "other/labkit", "00_start.ipynb")
    assert nbformat.writes(notebook) == once.replace("someone/labkit", "other/labkit")


def test_what_is_installed_there_brings_no_jupyterlab():
    project = (Path(colab.ROOT) / "pyproject.toml").read_text(encoding="utf-8")
    base = project.partition("\ndependencies = [")[2].partition("]\n")[0]
    assert "ipywidgets" in base and "jupyter" not in base
