"""The largest batch that fits: found from below, tried again, and never at the kernel's cost."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit as lk
from labkit.experiments import largest_batch as batch_finder
from labkit.experiments.largest_batch import CONFIRMING_STEPS, FINE, LargestBatch, find
from labkit.results.machine import Machine


def attempt_of(most_that_fits, peak=lambda size: 0.1 + size / 1000, limit_gib=1.0):
    """A device on which up to `most_that_fits(steps)` samples fit."""

    def attempt(size, steps):
        fits = size <= most_that_fits(steps)
        values = {
            "fits": fits, "why": None if fits else "out of memory", "steps": steps,
            "peak_bytes": peak(size) * 2**30, "limit_bytes": limit_gib * 2**30, "how": "made up",
        }  # fmt: skip
        return SimpleNamespace(
            params={"batch_size": size, "steps": steps}, machine=Machine.from_dict({}),
            points=[SimpleNamespace(values=values)], outcome="finished", error=None,
        )  # fmt: skip

    return attempt


def search(attempt, start=16, multiple=8, most=16_384):
    pipeline = lk.Pipeline(batch_size=start)
    return find(LargestBatch(pipeline, 0.1, multiple, most), attempt, lambda: None)


@settings(max_examples=100, deadline=None)
@given(
    true=st.integers(1, 16_384),
    start=st.integers(1, 4096),
    base=st.floats(0, 5),
    slope=st.floats(-0.001, 0.1),
)
def test_it_is_found_whatever_the_peaks_say(true, start, base, slope):
    done = search(attempt_of(lambda _: true, lambda size: base + slope * size), start)
    found = done.batch_size
    assert found is not None and found <= true
    unit = 1 if true < 8 else 8
    assert true - found <= max(2 * unit, 2 * (found // FINE))
    assert len(done.tried) <= 40


def test_a_true_line_needs_fewer_tries_than_bisection():
    done = search(attempt_of(lambda _: 800, lambda size: 0.1 + size * 0.001))
    assert done.batch_size == 800
    assert len(done.tried) <= 7


def test_sizes_are_multiples_where_there_is_room_for_them():
    done = search(attempt_of(lambda _: 1003))
    assert done.batch_size % 8 == 0
    assert all(t.batch_size % 8 == 0 for t in done.tried)


def test_what_fits_for_a_few_steps_only_is_not_believed():
    done = search(attempt_of(lambda steps: 100 if steps == CONFIRMING_STEPS else 200))
    assert done.batch_size is not None and done.batch_size <= 100
    last = [t for t in done.tried if t.fits][-1]
    assert last.confirming and last.batch_size == done.batch_size


def test_where_not_one_sample_fits_there_is_no_size():
    done = search(attempt_of(lambda _: 0))
    assert done.batch_size is None
    assert "not even one sample fits" in done.line
    assert done.tried[-1].batch_size == 1


def test_it_stops_at_the_most_that_was_asked_for():
    done = search(attempt_of(lambda _: 10**6), most=256)
    assert done.batch_size == 256 and "the most that was asked for" in done.line


def test_a_try_that_the_system_killed_did_not_fit_and_any_other_failure_is_raised():
    def killed(size, steps):
        done = attempt_of(lambda _: 64)(size, steps)
        if size > 64:
            done.points, done.outcome = [], "failed"
            done.error = "The bench process was ended by SIGKILL."
        return done

    assert search(killed).batch_size == 64

    def broken(size, steps):
        done = attempt_of(lambda _: 64)(size, steps)
        done.points, done.outcome, done.error = [], "failed", "TypeError: no."
        return done

    with pytest.raises(RuntimeError, match="batch_size=16: TypeError"):
        search(broken)


@pytest.mark.parametrize(
    ("setting", "value"), [("margin", 1), ("margin", -0.1), ("limit_gib", 0), ("multiple", 0)]
)
def test_bad_settings_are_refused_before_anything_starts(setting, value):
    with pytest.raises(ValueError, match=f"{setting}={value}"):
        lk.largest_batch(**{setting: value})


def test_the_table_is_safe_to_show():
    done = LargestBatch(lk.Pipeline(), 0.1, 8, 64)
    done.tried.append(batch_finder.Try(8, False, 0, None, "<b>no</b>"))
    assert "<b>" not in done._repr_html_()


def test_only_what_memory_refused_counts_as_not_fitting():
    from labkit.bench.memory_limit import in_words, refused

    said = (
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
    )
    assert refused(MemoryError()) and refused(RuntimeError(said))
    assert refused(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert not refused(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert in_words(RuntimeError(said)) == "DefaultCPUAllocator: can't allocate memory"
    assert in_words(MemoryError()) == "MemoryError"


def test_what_a_card_held_before_the_limit_is_not_counted_as_the_trainings(monkeypatch):
    import torch

    from labkit.bench.memory_limit import impose

    reserved = {"now": 3 * 2**30, "peak": 5 * 2**30}  # of an earlier model, freed and kept
    card = SimpleNamespace(total_memory=16 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: reserved.update(now=0))
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda _: reserved.update(peak=reserved["now"])
    )
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: reserved["peak"])
    assert impose(torch.device("cuda", 0), 2**30).used() == 0


def test_a_real_limit_is_found_and_refuses_without_harm():
    pipeline = lk.Pipeline(model="cnn", width=32, depth=2, batch_size=128)
    done = lk.largest_batch(pipeline, limit_gib=0.15, most=8192)
    assert done.batch_size, done
    refused = [t for t in done.tried if not t.fits]
    assert refused and all(t.batch_size > done.batch_size for t in refused)
    assert refused[0].why
    assert done.tried and done.limit_gib == pytest.approx(0.15)
    assert lk.largest_batch.last is done
    assert done.plot().axes
