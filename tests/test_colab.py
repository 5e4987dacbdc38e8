"""What `maintain/colab.py` writes into the files of a repository with an address, and takes out."""

import sys
from types import SimpleNamespace

import colab
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

HERE = "someone/labkit"
INSTALL = 'pip install -q "gpu-labkit @ git+https://github.com/someone/labkit"'


@pytest.mark.parametrize(
    "service, did",
    [
        ("", []),  # one's own machine
        ("Kaggle", [INSTALL]),
        ("Colab", [INSTALL, "manager"]),  # that shows the widgets of packages
    ],
)
def test_the_cell_installs_on_a_service_and_does_nothing_elsewhere(service, did, monkeypatch):
    done = []
    names = {}
    names["get_ipython"] = lambda: SimpleNamespace(
        run_line_magic=lambda *words: done.append(" ".join(words))
    )
    if service == "Colab":
        output = SimpleNamespace(enable_custom_widget_manager=lambda: done.append("manager"))
        monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace(output=output))
    if service == "Kaggle":
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    exec(TransformerManager().transform_cell(colab.CELL.format(repository=HERE)), names)
    for said, expected in zip(done, did, strict=True):
        assert expected in said


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The files that the script writes, as they are committed: {path: its text}."""
    (tmp_path / "notebooks").mkdir()
    committed = {}
    named = [colab.ROOT / name for name in ("README.md", "pyproject.toml", "CITATION.cff")]
    for path in [*named, *(colab.ROOT / "notebooks").glob("*.ipynb")]:
        copy = tmp_path / path.relative_to(colab.ROOT)
        committed[copy] = path.read_text(encoding="utf-8")
        copy.write_text(committed[copy], encoding="utf-8")
    monkeypatch.setattr(colab, "ROOT", tmp_path)
    return committed


def test_a_fork_is_written_once_follows_its_name_and_is_removed_to_the_byte(clone, monkeypatch):
    def written_by(*arguments):
        monkeypatch.setattr(sys, "argv", ["colab.py", *arguments])
        colab.main()
        return {path: path.read_text(encoding="utf-8") for path in clone}

    assert not any("OWNER" in text or "colab.research" in text for text in clone.values())
    here = written_by(HERE)
    assert written_by("some-one-else/x.y") == written_by("some-one-else/x.y") != here
    assert written_by(HERE) == here
    for path, text in here.items():
        if path.name in ("pyproject.toml", "CITATION.cff"):
            assert f'"https://github.com/{HERE}"' in text
            continue
        name = path.name if path.suffix == ".ipynb" else "00_start_here.ipynb"
        page = f"github/{HERE}/blob/main/notebooks/{name}"
        assert text.count(f"(https://colab.research.google.com/{page})") == 1
        if path.suffix == ".ipynb":
            first = next(c for c in nbformat.reads(text, 4).cells if c.cell_type == "code")
            assert first.source.startswith(colab.CELL.format(repository=HERE))
    pictures = f"](https://raw.githubusercontent.com/{HERE}/main/notebooks/images/"
    assert here[colab.ROOT / "README.md"].count(pictures) == 2
    assert written_by("--remove") == written_by("--remove") == clone


@pytest.mark.parametrize(
    "arguments", [[], ["OWNER"], ["https://github.com/a/b"], ["a/b/c"], ["a/b", "--remove"]]
)
def test_a_name_that_is_no_repository_is_refused_before_anything_is_written(
    arguments, clone, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["colab.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        colab.main()
    assert "NAME/REPO" in capsys.readouterr().err
    assert all(path.read_text(encoding="utf-8") == text for path, text in clone.items())


def test_what_is_installed_there_brings_no_jupyterlab():
    project = (colab.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    base = project.partition("\ndependencies = [")[2].partition("]\n")[0]
    assert "ipywidgets" in base and "jupyter" not in base
