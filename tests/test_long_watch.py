"""What a watched loop that runs for days leaves: a small log."""

import pytest
from helpers import Waiting
from torch.utils.data import DataLoader

import labkit as lk
from labkit.instruments import loader_work, telemetry
from labkit.watching import recorder


def test_many_passes_are_recorded_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(recorder, "KEEP_PASSES", 5)
    watched = lk.watch(range(3), live=False)
    for _ in range(9):
        assert list(watched) == [0, 1, 2]
    run = watched.run
    assert 15 <= run.steps < 27 and len(run.passes_ended) == 6 and run.is_cut_short


def test_the_telemetry_of_a_year_is_that_of_hours():
    due_s, count = 0.0, 0
    while due_s < 365 * 24 * 3_600:
        due_s += telemetry.period_s(due_s)
        count += 1
    assert count < 2 * 3_600 / telemetry.PERIOD_S + 10


@pytest.mark.slow
def test_workers_that_start_for_each_pass_record_ever_fewer_of_their_starts(monkeypatch):
    monkeypatch.setattr(loader_work, "STARTS", 2)
    monkeypatch.setattr("labkit.watching.recorder.STARTS", 2)
    watched = lk.watch(DataLoader(Waiting(0.0, 8), 4, num_workers=2), live=False)
    for _ in range(12):
        for _batch in watched:
            pass
    watched.close()
    recorded = {worker.processes for worker in watched.run.workers}
    assert recorded == {5}  # the 1st, 2nd, 3rd, 5th and 9th
    assert len(watched.run.passes_ended) == 12 and watched.run.steps == 24
