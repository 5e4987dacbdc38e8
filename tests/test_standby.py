"""The next run's processes, started ahead: quick, used once, and gone when they should be."""

import contextlib
import os
import subprocess
import sys
import time

import pytest
from helpers import processes_of
from planted import QUICK, wait_until

from labkit.api import launch
from labkit.process import family, launcher

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


@pytest.fixture
def standing():
    """Start a standby: `standing()` returns its handle."""

    def start(**how):  # in the test: pytest changes the environment before the call
        launcher.end_standby()
        launcher.stand_by(forced=True, **how)
        return launcher._standby

    yield start
    launcher.end_standby()


def waits(handle):
    """Whether the standby's bench has imported torch and uses no CPU time any more."""
    pid = min(family.descendants(handle.process.pid)[1:], default=0)  # below the supervisor
    with contextlib.suppress(OSError):
        if "libtorch_cpu" in open(f"/proc/{pid}/maps").read():
            before = open(f"/proc/{pid}/stat").read()
            time.sleep(0.3)
            return open(f"/proc/{pid}/stat").read() == before and before.split()[2] == "S"
    return False


def first_step_s():
    start = time.perf_counter_ns()
    run = launch(QUICK).wait()
    assert run.outcome == "finished", run.error
    return run, run.host_ns[0, 3] - start


def test_a_standby_gives_the_first_step_sooner_and_serves_one_run(standing):
    standby = standing()
    wait_until(lambda: waits(standby))
    warm, warm_ns = first_step_s()
    assert warm.path == standby.folder and launcher._standby is None
    cold, cold_ns = first_step_s()
    assert cold.path != warm.path and warm_ns < 0.6 * cold_ns
    assert cold.loss == warm.loss  # the same training
    # no switch that one run sets is there for another
    assert cold.event("hello")["pid"] != warm.event("hello")["pid"]
    assert not processes_of(warm.path)


def test_where_the_surroundings_have_changed_a_run_starts_cold_and_no_standby_beside_it(
    standing, monkeypatch
):
    standby = standing()
    monkeypatch.setenv("LABKIT_TEST", "1")
    run = launch(QUICK.but(steps=10**6, seconds=60))
    wait_until(lambda: run.steps > 3)
    assert run.path != standby.folder
    wait_until(lambda: not standby.folder.exists() and not processes_of(standby.folder))
    assert standing() is None  # nor is one started while a run goes on
    run.stop()


def test_an_unused_standby_ends_by_itself_and_leaves_nothing(standing):
    handle = standing(idle_s=0.5)
    wait_until(lambda: handle.process.poll() is not None)
    assert handle.process.returncode == 0
    assert not handle.folder.exists() and not processes_of(handle.folder)


KERNEL = """
from labkit.process import family, launcher
import labkit, time
labkit.machine()
print(launcher._standby.folder, flush=True)
time.sleep(60)
"""


def test_a_notebook_that_asks_for_its_machine_has_a_standby_which_dies_with_its_kernel():
    env = os.environ | {"LABKIT_WARM": "1"}
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], env=env, stdout=-1, text=True)
    folder = kernel.stdout.readline().strip()
    wait_until(lambda: processes_of(folder))
    kernel.kill()
    kernel.wait()
    wait_until(lambda: not processes_of(folder) and not os.path.exists(folder))
