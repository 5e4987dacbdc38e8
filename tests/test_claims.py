"""Claims of the notebooks: what is judged where, and what becomes of one that does not hold."""

import pytest

import labkit as lk


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setenv("LABKIT_QUICK", "1")
    monkeypatch.setenv("LABKIT_STRICT", "1")


def test_a_claim_about_times_that_fails_in_a_quick_run_is_not_judged(quick, capsys):
    lk.check("workers make it faster", False)
    lk.check("none is slower", True)
    said = "- not judged in a quick run: workers make it faster\n✓ none is slower\n"
    assert capsys.readouterr().out == said


def test_a_claim_about_values_is_judged_in_every_run(quick):
    with pytest.raises(AssertionError, match="does not hold here: 257 becomes 256"):
        lk.check("257 becomes 256", False, exact=True)


def test_a_reader_whose_numbers_differ_is_told_so(monkeypatch, capsys):
    for name in ("LABKIT_QUICK", "LABKIT_STRICT"):
        monkeypatch.delenv(name, raising=False)
    lk.check("workers make it faster", False)
    assert capsys.readouterr().out == "✗ not on this machine: workers make it faster\n"
