"""NVML in every bad mood: a stub library, compiled here, answers the telemetry in its place.

It is compiled against NVIDIA's own header, so its signatures and structs are those of the driver.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted import QUICK, wait_until
from played_gpu import GPU, MS, log, play

from labkit.api import launch
from labkit.process import launcher
from labkit.stamps.events import EventLog
from labkit.stamps.record import Tail

# of nvidia-nvml-dev
HEADERS = [found for root in sys.path for found in Path(root).glob("nvidia/*/include/nvml.h")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="needs gcc"),
    pytest.mark.skipif(not HEADERS, reason="no nvml.h: pip install nvidia-nvml-dev"),
]

OWN = "GPU-own"
MIG = "MIG-own"
HOST = 4_200_001
OTHERS = 4_200_002  # above Linux's highest process id: nobody's in here
OURS = str(os.getpid())
STUB = r"""
#include <math.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned u; typedef unsigned long long ull;
static const char *set(const char *name) { const char *s = getenv(name); return s ? s : ""; }
static int is(const char *mood) { return !strcmp(set("STUB"), mood); }
static long of(nvmlDevice_t c) { return (long)c; }       /* 1: own, 2: other, 3: a MIG instance */
static int calls = 0;
static nvmlReturn_t answer(const char *f, nvmlDevice_t c) {
  if (!strncmp(set("STUB"), "no ", 3) && !strcmp(set("STUB") + 3, f))
    return NVML_ERROR_NOT_SUPPORTED;
  if (of(c) == 3 && !strstr(f, "Memory")) return NVML_ERROR_NOT_SUPPORTED;
  if (is("lost") && ++calls > 40) return NVML_ERROR_GPU_IS_LOST;
  if (is("hangs") && ++calls > 40) sleep(3600);
  return NVML_SUCCESS;
}
#define ASK { nvmlReturn_t no = answer(__func__, c); if (no) return no; }
#define GET(F, T, BODY) nvmlReturn_t F(nvmlDevice_t c, T *v) { ASK BODY; return NVML_SUCCESS; }
nvmlReturn_t nvmlInitWithFlags(u f) {
  return is("mismatch") ? NVML_ERROR_LIB_RM_VERSION_MISMATCH : NVML_SUCCESS;
}
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t e) {
  return e == NVML_ERROR_LIB_RM_VERSION_MISMATCH ? "Driver/library version mismatch" : "error";
}
#define SAY(TEXT) { snprintf(v, n, TEXT); return NVML_SUCCESS; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *v, u n) SAY("550.54.14")
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *v) { *v = 12040; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t c, int *major, int *minor) {
  *major = 9; *minor = 0; return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t c, char *v, u n) SAY("NVIDIA Stub")
/* the other card comes first: NVML's order is not CUDA's */
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(u i, nvmlDevice_t *c) {
  *c = (nvmlDevice_t)(i == 0 ? 2l : 1l); return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *c) {
  *c = (nvmlDevice_t)(!strcmp(uuid, "MIG-own") ? 3l : !strcmp(uuid, "GPU-own") ? 1l : 2l);
  return NVML_SUCCESS;
}
GET(nvmlDeviceGetMemoryInfo, nvmlMemory_t, v->total = 8ull << 30; v->used = (ull)of(c) << 30;
    v->free = v->total - v->used)
GET(nvmlDeviceGetPowerUsage, u, *v = 100000 * of(c))
GET(nvmlDeviceGetEnforcedPowerLimit, u, *v = 300000)
static ull spent = 0;
GET(nvmlDeviceGetTotalEnergyConsumption, ull, *v = (spent += 1000) * of(c))
GET(nvmlDeviceGetUtilizationRates, nvmlUtilization_t, v->gpu = 40 + of(c); v->memory = 9)
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t c, nvmlClockType_t kind, u *mhz) {
  ASK *mhz = kind != NVML_CLOCK_SM ? 1 : is("throttled") ? 900 : 1980; return NVML_SUCCESS;
}
#ifndef OLD
static ull reasons(void) {
  return is("throttled") ? nvmlClocksEventReasonSwPowerCap | nvmlClocksEventReasonSwThermalSlowdown
                         : nvmlClocksEventReasonNone;
}
GET(nvmlDeviceGetCurrentClocksEventReasons, ull, *v = reasons())
static u next(const char **at, u *percent) {  /* of "pid pid:percent"; 0 at its end */
  char *end;
  u pid = strtoul(*at, &end, 10);
  if (*end == ':') *percent = strtoul(end + 1, &end, 10);
  *at = end;
  return pid;
}
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t c, nvmlProcessUtilizationSample_t *s,
                                             u *n, ull last) {
  ASK u room = s ? *n : 0, pid, percent = 0; const char *at = set("STUB_SHARES");
  for (*n = 0; (pid = next(&at, &percent)); ++*n)
    if (*n < room) s[*n] = (nvmlProcessUtilizationSample_t){pid, last + 100000, percent, 0, 0, 0};
  return *n == 0 ? NVML_ERROR_NOT_FOUND : s ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t c, nvmlGpmSupport_t *s) {
  ASK s->isSupportedDevice = s->version == NVML_GPM_SUPPORT_VERSION; return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *s) { *s = malloc(8); return NVML_SUCCESS; }
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t c, nvmlGpmSample_t s) { ASK return NVML_SUCCESS; }
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *g) {
  if (g->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  for (u i = 0; i < g->numMetrics; ++i) {
    g->metrics[i].nvmlReturn = NVML_SUCCESS;
    g->metrics[i].value = is("NaN") ? NAN : 88;
  }
  return NVML_SUCCESS;
}
#endif
"""
READ = """
import json, os, sys
from labkit.instruments.telemetry import GpuMeter
for mood in json.loads(sys.argv[1]):
    os.environ.update(mood)  # the stub in this process sees it
    meter = GpuMeter(os.environ["CARD"], int(os.environ["PID"]))
    meter.read()
    print(json.dumps(meter.read(), allow_nan=False))
"""
# The functions behind each key of a sample, for cards that do not have them
ASKED = {
    "nvmlDeviceGetUtilizationRates": "gpu_now", "nvmlDeviceGetMemoryInfo": "memory_gib",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w", "nvmlDeviceGetClockInfo": "sm_mhz",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j", "nvmlGpmQueryDeviceSupport": "gpm",
    "nvmlDeviceGetProcessUtilization": "others_sm",
}  # fmt: skip
NORMAL = {
    "gpu_now": 0.41, "memory_gib": 1.0, "power_w": 100.0, "power_limit_w": 300.0, "sm_mhz": 1980,
    "clock_reasons": 0, "others_sm": 0.0,
    "gpm": {"sm": 0.88},
}  # fmt: skip


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    """A folder with a libnvidia-ml.so.1, and in `old` an older one; STUB sets its mood."""
    folder = tmp_path_factory.mktemp("stub")
    (folder / "old").mkdir()
    (folder / "stub.c").write_text(STUB)
    strict = ["-Wall", "-Werror", "-Wno-deprecated-declarations", "-I", HEADERS[0].parent]
    for place, card in ((folder, "NEW"), (folder / "old", "OLD")):
        library = place / "libnvidia-ml.so.1"
        command = ["gcc", "-shared", "-fPIC", f"-D{card}", "-o", library, folder / "stub.c"]
        subprocess.run([*command, *strict], check=True)
    return folder


def read(library, *moods):
    """What the telemetry reads from the card, in each of the moods."""
    usual = {"CARD": OWN, "PID": OURS, "STUB": "well"}
    usual |= {"STUB_SHARES": f"{OURS}:60"}
    env = os.environ | {"LD_LIBRARY_PATH": str(library)}
    command = [sys.executable, "-c", READ, json.dumps([usual | mood for mood in moods])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def telemetry_of(folder, count, **environment):
    """Return `count` samples or more that the telemetry writes into a log in `folder`."""
    log = EventLog(folder)
    log.write("hello", pid=os.getpid())
    log.write("machine", device="cuda:0", kind="gpu", name="Stub", versions={}, uuid=OWN)
    command = [sys.executable, "-m", "labkit.instruments.telemetry", str(os.getpid())]
    process = subprocess.Popen(command, cwd=folder, env=os.environ | environment)
    tail = Tail(folder / "events.jsonl")
    samples = []

    def has_enough():
        samples.extend(event for event in tail.read() if event["event"] == "telemetry")
        return len(samples) >= count or process.poll() is not None

    try:
        wait_until(has_enough)
    finally:
        process.kill()
        process.wait()
    return samples


def verdict(folder, sample):
    """The diagnosis of a starved run on a GPU of which this was read."""
    read = {"event": "telemetry", **sample, "t_ns": 2000 * MS}
    return log(folder, GPU, {"num_workers": 0}, *play(prep=50.0)[0], read).diagnose()


def test_a_card_is_found_by_its_uuid_whatever_nvmls_order_and_may_be_lost(stub, tmp_path):
    first, *_, gone = telemetry_of(tmp_path, 8, LD_LIBRARY_PATH=str(stub), STUB="lost")
    known = {"power_w": 100, "gpu_now": 0.41, "memory_gib": 1, "power_limit_w": 300}
    assert first.items() >= known.items()  # the other card has 200 W, 42 %, 2 GiB
    assert first["gpm"]["sm"] == 0.88
    assert gone["power_w"] is gone["gpu_now"] is None
    assert gone["cpu"] is not None  # a gap in the middle, and the samples go on


@pytest.mark.nightly
def test_with_a_driver_that_does_not_fit_its_library_the_samples_have_gaps(stub, tmp_path):
    for sample in telemetry_of(tmp_path, 2, LD_LIBRARY_PATH=str(stub), STUB="mismatch"):
        assert sample.get("power_w") is None and sample["cpu"] is not None


@pytest.mark.nightly
def test_what_a_card_lacks_is_none_and_all_others_are_there(stub):
    whole, *partial = read(stub, {}, *({"STUB": f"no {function}"} for function in ASKED))
    assert whole.items() >= NORMAL.items()
    for sample, key in zip(partial, ASKED.values(), strict=True):
        assert sample[key] is None
        assert sample.items() >= {k: v for k, v in NORMAL.items() if k != key}.items()
    mig, hot, odd = read(stub, {"CARD": MIG}, {"STUB": "throttled"}, {"STUB": "NaN"})
    known = {key for key, value in mig.items() if value is not None}
    assert known == {"memory_gib"} and mig["memory_gib"] == 3  # none of the card's
    assert hot["sm_mhz"] == 900 and hot["clock_reasons"] == 0x24  # power limit, heat
    assert odd["gpm"] == {"sm": None}
    (older,) = read(stub / "old", {"STUB": "throttled"})  # it lacks functions
    assert older["others_sm"] is older["gpm"] is older["clock_reasons"] is None
    assert older["power_w"] == 100


SCENES = {  # percentages of SM time by pid: others_sm, shared
    "the run alone": (f"{OURS}:60", 0.0, False),
    "another training": (f"{OURS}:50 {OTHERS}:45", 0.45, True),
    "the run's own worker": (f"{OURS}:50 WORKER:40", 0.0, False),
    "host ids, another training": (f"{HOST}:50 {OTHERS}:45", None, False),
}


@pytest.fixture(scope="module")
def scenes(stub):
    """What the telemetry reads with everybody who may be on a card, by name."""
    worker = subprocess.Popen(["sleep", "60"])
    shares = [said[0].replace("WORKER", str(worker.pid)) for said in SCENES.values()]
    found = read(stub, *({"STUB_SHARES": each} for each in shares))
    worker.kill()
    worker.wait()
    return dict(zip(SCENES, found, strict=True))


@pytest.mark.parametrize("who", SCENES)
def test_a_card_is_shared_where_others_compute_and_not_where_they_rest(who, scenes, tmp_path):
    sample, (_, others_sm, is_shared) = scenes[who], SCENES[who]
    assert sample["others_sm"] == others_sm
    found = verdict(tmp_path, sample)
    assert (found.findings[0].cause == "neighbour") == is_shared
    assert found.bottleneck == ("unsure" if is_shared else "input")
    if is_shared:
        assert "45% of the time" in found.evidence


@pytest.mark.nightly
def test_a_call_that_hangs_ends_the_samples_and_nothing_else(stub, monkeypatch):
    """A whole run, whose telemetry is on the stub's card and hangs there."""
    code = f"""
import sys, labkit.instruments.telemetry as t
wait = t.Lifetime.wait_for
t.Lifetime.wait_for = lambda *a: wait(*a) | {{"uuid": {OWN!r}}}
t.main(int(sys.argv[1]))
"""
    start = launcher.Handle.start

    def on_the_stub(handle):
        handle.plan["telemetry"] = [sys.executable, "-c", code]
        start(handle)

    monkeypatch.setattr(launcher.Handle, "start", on_the_stub)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub))
    monkeypatch.setenv("STUB", "hangs")
    run = launch(QUICK.but(steps=10**6, seconds=2.5)).wait()
    assert run.outcome == "finished"
    assert run.telemetry[0]["power_w"] == 100
    silent_s = (run.host_ns[-1, 3] - run.telemetry[-1]["t_ns"]) / 1e9
    assert silent_s > 0.5  # it hung long before the run ended
