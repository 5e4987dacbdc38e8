"""NVML in every bad mood: a stub library, compiled here, answers the telemetry in its place.

The telemetry process is the real one, following the log of a run on "a card" of the stub.
"""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from labkit.bench.events import EventLog

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="the stub is an ELF library"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to compile the stub with"),
]

OWN, OTHER = "GPU-own", "GPU-other"
STUB = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned u; typedef unsigned long long ull; typedef long card;
static int is(const char *mood) { const char *m = getenv("STUB"); return m && !strcmp(m, mood); }
static int calls = 0;
static int answer(void) {
  if (is("lost") && ++calls > 12) return 15;      /* NVML_ERROR_GPU_IS_LOST */
  if (is("hangs") && ++calls > 12) sleep(3600);
  return 0;
}
int nvmlInitWithFlags(u f) { return is("mismatch") ? 18 : 0; }
int nvmlInit_v2(void) { return is("mismatch") ? 18 : 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return e == 18 ? "Driver/library version mismatch" : "error"; }
/* the other card comes first: NVML's order is not CUDA's */
int nvmlDeviceGetHandleByIndex_v2(u i, card *c) { *c = i == 0 ? 2 : 1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, card *c) {
  *c = strcmp(uuid, "GPU-own") ? 2 : 1; return 0;
}
int nvmlDeviceGetMemoryInfo(card c, ull *m) {
  m[0] = 8ull << 30; m[2] = (ull)c << 30; m[1] = m[0] - m[2]; return answer();
}
int nvmlDeviceGetPowerUsage(card c, u *mw) {
  *mw = 100000 * c; return is("no power") ? 3 : answer();   /* NVML_ERROR_NOT_SUPPORTED */
}
int nvmlDeviceGetTotalEnergyConsumption(card c, ull *mj) {
  static ull spent = 0; *mj = (spent += 1000) * c; return is("no power") ? 3 : answer();
}
int nvmlDeviceGetUtilizationRates(card c, u *r) { r[0] = 40 + c; r[1] = 9; return answer(); }
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    """A folder with a libnvidia-ml.so.1; the environment variable STUB sets its mood."""
    folder = tmp_path_factory.mktemp("stub")
    (folder / "stub.c").write_text(STUB)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, folder / "stub.c"], check=True)
    return folder


def telemetry_of(folder, seconds, samples=4, **environment):
    """Let the telemetry follow a log in `folder` until it has written some samples; its events."""
    log = EventLog(folder)
    log.write("hello", pid=os.getpid())
    log.write("machine", device="cuda:0", kind="gpu", name="Stub", versions={}, uuid=OWN)
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit.bench.telemetry", str(os.getpid())],
        cwd=folder, env=os.environ | environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline and process.poll() is None:
            events = [json.loads(line) for line in open(folder / "events.jsonl")]
            if sum(event["event"] == "telemetry" for event in events) >= samples:
                break
            time.sleep(0.05)
        assert process.poll() is None, process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    return [json.loads(line) for line in open(folder / "events.jsonl")]


def samples_of(events):
    return [event for event in events if event["event"] == "telemetry"]


def test_a_card_is_found_by_its_uuid_whatever_nvmls_order(stub, tmp_path):
    events = telemetry_of(tmp_path, 30, LD_LIBRARY_PATH=str(stub), STUB="well")
    sample = samples_of(events)[-1]
    assert sample["power_w"] == 100 and sample["gpu_now"] == 0.41  # the other card has 200 and 42
    assert sample["memory_gib"] == 1
    assert sample["gpm"] is None and sample["gpu"] is None  # this stub has none: a gap


@pytest.mark.parametrize(
    ("mood", "says"),
    [("missing", "LibraryNotFound"), ("mismatch", "mismatch")],
)
def test_without_a_driver_that_answers_the_samples_have_gaps_and_the_log_says_why(
    mood, says, stub, tmp_path
):
    path = str(tmp_path / "nowhere" if mood == "missing" else stub)
    events = telemetry_of(tmp_path, 30, LD_LIBRARY_PATH=path, STUB=mood)
    why = next(event["why"] for event in events if event["event"] == "no_nvml")
    assert says in why
    assert all(sample.get("power_w") is None for sample in samples_of(events))
    assert all(sample["cpu"] is not None for sample in samples_of(events))


def test_a_metric_that_is_not_supported_is_none_and_the_others_are_there(stub, tmp_path):
    events = telemetry_of(tmp_path, 30, LD_LIBRARY_PATH=str(stub), STUB="no power")
    sample = samples_of(events)[-1]
    assert sample["power_w"] is None and sample["energy_j"] is None
    assert sample["gpu_now"] == 0.41


def test_a_card_that_is_lost_becomes_a_gap_in_the_middle(stub, tmp_path):
    events = telemetry_of(tmp_path, 30, samples=8, LD_LIBRARY_PATH=str(stub), STUB="lost")
    powers = [sample["power_w"] for sample in samples_of(events)]
    assert powers[0] == 100 and powers[-1] is None


def test_a_call_that_hangs_ends_the_samples_and_nothing_else(stub, tmp_path, monkeypatch):
    """A whole run, whose telemetry is on the stub's card and hangs there."""
    from labkit import Pipeline
    from labkit.lab import launcher

    code = (
        "import sys, labkit.bench.telemetry as t\n"
        "wait = t.wait_for\n"
        f"t.wait_for = lambda *a: [e | {{'uuid': {OWN!r}}} for e in wait(*a)]\n"
        "t.main(int(sys.argv[1]))"
    )
    monkeypatch.setattr(launcher, "TELEMETRY", [sys.executable, "-c", code])
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub))
    monkeypatch.setenv("STUB", "hangs")
    quick = Pipeline(dataset="sleep", prep_ms=2, model="mlp", width=32, depth=1, xray=False)
    run = launcher.launch(quick.but(steps=10**6, seconds=3)).wait()
    assert run.outcome == "finished"
    samples = run.telemetry
    assert samples and samples[0]["power_w"] == 100
    silent_s = (run.steps_since(0)[-1]["t"][3] - samples[-1]["t_ns"]) / 1e9
    assert silent_s > 0.8  # it hung long before the run ended
