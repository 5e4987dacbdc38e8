"""The cell that installs labkit on Colab and Kaggle, and how it comes into the notebooks."""

import importlib.metadata
import sys
from pathlib import Path
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


def test_the_cell_is_put_into_a_notebook_once_and_follows_the_repository():
    new = nbformat.v4
    first = new.new_markdown_cell("# 00 Start\n\n**Why?**\n\nPress Run.", id="start-00")
    code = new.new_code_cell("1 + 1", id="start-01", execution_count=1)
    notebook = new.new_notebook(cells=[first, code])

    def written(repository):
        colab.add(notebook, repository, "00_start.ipynb")
        return nbformat.writes(notebook)

    once = written(HERE)
    assert written(HERE) == once
    assert written("other/labkit") == once.replace(HERE, "other/labkit")
    assert [cell.id for cell in notebook.cells] == ["start-00", "start-01"]
    assert notebook.cells[1].source.endswith("manager()\n\n1 + 1")
    title, _, badges, _, *rest = notebook.cells[0].source.splitlines()
    assert title == "# 00 Start" and rest == ["**Why?**", "", "Press Run."]
    page = "github/other/labkit/blob/main/notebooks/00_start.ipynb"
    assert f"(https://colab.research.google.com/{page})" in badges


def test_what_is_installed_there_brings_no_jupyterlab():
    project = (Path(colab.ROOT) / "pyproject.toml").read_text(encoding="utf-8")
    base = project.partition("\ndependencies = [")[2].partition("]\n")[0]
    assert "ipywidgets" in base and "jupyter" not in base
