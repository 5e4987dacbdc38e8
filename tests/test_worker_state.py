"""Library threads in a loader's workers, its slow items, and who else has the cores."""

import pytest
from test_diagnosis import diagnosed
from test_lines import FLAT_MS, watched_loop
from test_supply import some_slow

from labkit.diagnosis.evidence import SlowItems
from labkit.diagnosis.hot_lines import Line
from labkit.results import supply
from labkit.results.core_use import CoreUse

BUSY = {"cpu_shares": (0.9, 0.9)}
LINE = Line("train.py", 9, "Items.fetch", 0.9, "worker", "wait", "requests.get()")


@pytest.mark.parametrize(
    "cpu_shares, libraries, cores, crowd",
    [
        ((0.2, 0.2), 1, 2, "each of 2 workers computes with 2 threads, 4 in all, on 2 cores"),
        ((0.3,) * 4, 15, 16, "16 threads, 64 in all, on 16 cores"),  # too few cores: no CPU share
        ((1.9, 1.9), 0, 2, "2 threads, 4 in all"),  # an older record: not counted
        ((0.95, 0.95), 0, 2, None),
        ((1.9,), 1, 2, None),  # one worker that has all cores
        ((0.9, 0.9), 3, 16, None),  # cores for all of them
    ],
)
def test_threads_of_libraries_are_counted_and_blamed_where_the_cores_do_not_suffice(
    cpu_shares, libraries, cores, crowd
):
    seen = {"cpu_shares": cpu_shares, "library_threads": libraries}
    beside = CoreUse(cores, own=0.9, others=0.5 * cores, in_line=1.0)
    found = diagnosed(seen, use=beside)
    assert (found.cause == "threads") == bool(crowd)
    if crowd:
        assert crowd in found.evidence
        assert "OMP_NUM_THREADS=1" in found.advice and "labkit tune" in found.advice
        assert "threadpoolctl" not in found.code and "import os" in found.code


def test_a_step_that_loses_its_cores_to_library_threads_is_told_of_them():
    seen = {"cpu_shares": (0.5, 0.5), "library_threads": 1}
    found = diagnosed(seen, wait_share=0.0, compute_share=1.0, kind="cpu", stolen_by_workers=0.5)
    assert found.cause == "workers_take_the_device's_cores"
    assert "computes with 2 threads" in found.evidence and "OMP_NUM_THREADS=1" in found.advice


def slow_items(seen, **more):
    """What is said where a few items are slow."""
    slow = SlowItems(supply.few_slow(seen), (137, 337), (LINE,))
    return diagnosed(BUSY | {"idle_share": 0.3}, slow_items=slow, **more)


def test_a_few_slow_items_are_named_with_their_line_and_share_and_bridged():
    found = slow_items(some_slow(20, 2.0))
    assert found.cause == "slow_items"
    each = "a few items take 2 s each, 200 times as long as the others, 1 item in 160 (137, 337)"
    assert each in found.evidence
    assert "`requests.get()` in Items.fetch() (train.py:9)" in found.evidence
    assert "a few items take 800.0 ms each" in slow_items(some_slow(20, 0.8)).evidence
    assert "prefetch_factor=8" in found.advice and "in_order=False" in found.advice
    assert "prefetch_factor=8" in found.code
    assert slow_items(some_slow(20, 0.11)).cause == "cores"  # they cost little


# -- other programs --------------------------------------------------------------------------------


BESIDE = {"event": "beside", "processes": [{"pid": 12, "name": "blender", "cores": 1.0}]}


@pytest.mark.parametrize(
    "work, cpu, line_cpu, first",
    [
        (("forward", "model()"), 1.0, 0.4, "unsure"),
        (("forward", "model()"), 1.0, None, "unsure"),  # outside Linux
        (("python", "json.dumps()"), 1.0, 0.4, "host"),
        (("python", "json.dumps()"), 1.0, None, "host"),
        (("forward", "model()"), 1.0, 0.02, "compute"),
        (("forward", "model()"), 0.52, 0.4, "compute"),
    ],
)
def test_other_programs_that_have_the_cores_come_first_and_a_line_stays_what_it_is(
    work, cpu, line_cpu, first, tmp_path
):
    found = watched_loop(tmp_path, FLAT_MS, BESIDE, work=work, cpu=cpu, line_cpu=line_cpu)
    found = found.diagnose()
    what, why, do = str(found).split("\n")[:3]
    assert found.bottleneck == first
    others = "Other programs used 1.0 of 2 cores meanwhile: blender (pid 12)"
    assert (others in what) == (cpu == 1.0)
    if first == "unsure":
        had = "44% of the time in which this program had work, others had its cores"
        assert (had in why) == (line_cpu is not None)
        assert do.startswith("Do: Stop the other work and run again.")
