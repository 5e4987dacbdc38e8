"""Library threads in a loader's workers, its slow items, and who else has the cores."""

import pytest
from test_diagnosis import diagnosed
from test_lines import FLAT_MS, watched_loop

from labkit.results.core_use import CoreUse

BUSY = {"cpu_shares": (0.9, 0.9)}


@pytest.mark.parametrize(
    "cpu_shares, libraries, cores, crowd",
    [
        ((0.2, 0.2), 1, 2, "each of 2 workers computes with 2 threads, 4 in all, on 2 cores"),
        ((0.95, 0.95), 0, 2, None),
        ((1.9,), 1, 2, None),  # one worker that has all cores
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


# -- other programs --------------------------------------------------------------------------------


BESIDE = {"event": "beside", "processes": [{"pid": 12, "name": "blender", "cores": 1.0}]}


@pytest.mark.parametrize(
    "work, cpu, line_cpu, first",
    [
        (("forward", "model()"), 1.0, 0.4, "unsure"),
        (("python", "json.dumps()"), 1.0, 0.4, "host"),
        (("forward", "model()"), 1.0, 0.02, "compute"),
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
