"""`labkit lab`: the course in a folder of the reader's, whose changes are kept."""

import json
import sys

import pytest

from labkit import __main__ as terminal
from labkit.course import lab


def test_the_course_is_copied_and_what_the_reader_changed_is_kept(tmp_path, capsys):
    first = lab.copy_course(tmp_path / "mine")
    assert "00_start_here.ipynb" in first.copied and "symptoms/README.md" in first.copied
    assert not [name for name in first.copied if "conftest" in name or "cache" in name]
    assert json.loads((tmp_path / "mine" / lab.FIRST).read_text())["nbformat"] == 4
    (tmp_path / "mine" / "glossary.md").write_text("my own words")
    (tmp_path / "mine" / "folklore.md").unlink()
    assert terminal.main(["lab", str(tmp_path / "mine"), "--copy-only", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["copied"], again["kept"]) == (["folklore.md"], ["glossary.md"])
    assert (tmp_path / "mine" / "glossary.md").read_text() == "my own words"


def test_jupyterlab_opens_the_first_notebook_in_our_place(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(lab, "run_in_foreground", lambda command, *_, **__: started.append(command))
    lab.open_lab(tmp_path)
    assert started == [[sys.executable, "-m", "jupyterlab", str(tmp_path / lab.FIRST)]]
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'gpu-labkit\[notebooks\]'"):
        lab.open_lab(tmp_path)
