"""What a watched loop that runs for days leaves: a small log."""

import labkit as lk
from labkit.watching import recorder


def test_many_passes_are_recorded_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(recorder, "KEEP_PASSES", 5)
    watched = lk.watch(range(3), live=False)
    for _ in range(9):
        assert list(watched) == [0, 1, 2]
    run = watched.run
    assert 15 <= run.steps < 27 and len(run.passes_ended) == 6 and run.is_cut_short
