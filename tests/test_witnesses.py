"""A GPU that looks busy may be waiting between its kernels: what is said of it, and who can tell.

The runs are event logs as a GPU would write them, from a queue of kernels played through by hand
(played_gpu.py): the share of the time in which a kernel ran is known, and is the standard.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_gpu import GPU, MS, load, log, play, watched_log

import labkit as lk
from labkit.diagnosis.device_remedies import formats_left
from labkit.diagnosis.evidence import Evidence
from labkit.results.step_classes import CLASSES
from labkit.results.sweep import Sweep
from labkit.view.panels import run_verdict
from labkit.view.several_figures import draw_sweep
from labkit.watching.step_timer import StepTimer

KNOBS = {"io_ms": 0.0, "xray": False}
LAUNCH_BOUND = {"launch": 10.0, "compute": 1.0, "steps": 200}
FED = {"launch": 1.0, "compute": 10.0, "steps": 200}
SYNCED = FED | {"sync": True}
HIDDEN = "busy_is_an_upper_bound"


def record(path, *, machine=GPU, telemetry=(), extra=(), spec=(), knobs=KNOBS, **how):
    """Write and load the log of a loop that `play` played; its true busy share is beside it."""
    steps, kernels = play(**how)
    read = ({"event": "telemetry", **sample} for sample in telemetry)
    run = log(path, machine, knobs, *steps, *read, *extra, spec=spec)
    run.recorded = False
    begin, end = (step["busy"][1] / MS for step in (steps[run.warmup - 1], steps[-1]))
    ran = np.clip(kernels[:, 1], begin, end) - np.clip(kernels[:, 0], begin, end)
    return run, ran.sum() / max(end - begin, 1e-9)


def samples(seconds=2.0, every=0.2, **values):
    """Telemetry from before the first step on."""
    moments = np.arange(0.5, 1.0 + seconds, every)
    return [{"t_ns": int(at * 1e9), **values} for at in moments]


# -- where the step's time goes, and how busy the device was --------------------------------------


@pytest.mark.parametrize(
    "how, expected",
    [  # ms of the mean step
        ({"prep": 30.0}, {"wait": 30 - (10.2 - 2), "copy": 0.5, "compute": 10.2}),
        (
            {"launch": 0.5, "gap": 8.0, "compute": 4.0, "sync": True},
            {"wait": 0.1, "copy": 0.5, "launch": 8.0, "compute": 4.05},
        ),
        ({"after": 20.0, "sync": True}, {"wait": 0.1, "copy": 0.5, "compute": 10.2, "other": 20}),
        ({"side_stream": True, "waits": False, "copy": 15.0}, {"copy": 5 - 0.2, "compute": 10.2}),
        (
            {"compute": [2.0, 2.0, 2.0, 12.0], "launch": 0.5},
            {"wait": 0.1, "copy": 0.5, "compute": 4.5 + 0.05},
        ),
    ],
    ids=[
        "starved",
        "launch-bound between steps",
        "logging",
        "copied too slowly meanwhile",
        "accumulation",
    ],
)
def test_every_part_of_a_step_is_in_the_class_of_what_held_the_device_up(tmp_path, how, expected):
    run = record(tmp_path, steps=103, **how)[0]
    parts = dict(zip(CLASSES, run.mean_ms, strict=True))
    assert sum(parts.values()) == pytest.approx(run.step_ms)
    assert parts == pytest.approx(dict.fromkeys(CLASSES, 0.0) | expected, abs=0.3)


lengths = st.floats(0.0, 20.0)


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("prep", "copy", "launch", "compute", "after", "gap"), lengths)
        | dict.fromkeys(("waits", "sync", "side_stream"), st.booleans())
    )
)
def test_the_true_busy_share_lies_between_the_two_that_the_run_tells(tmp_path_factory, how):
    how["compute"] += 0.1
    run, truth = record(tmp_path_factory.getbasetemp(), steps=20, **how)
    assert run.busy_at_least - 1e-3 <= truth <= run.utilization + 1e-3
    assert run.mean_ms.sum() == pytest.approx(run.step_ms)


def texts(figure):
    return "\n".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")))


def test_a_launch_bound_loop_looks_busy_and_all_that_shows_it_says_at_most(tmp_path):
    run, truth = record(tmp_path, **LAUNCH_BOUND)
    assert run.utilization > 0.9 and truth < 0.15 and run.busy_at_least < 0.1
    assert run.to_dict()["utilization_is_upper_bound"] is True
    assert f"GPU busy at most {run.utilization:.0%}" in repr(run)
    assert "at most" in run_verdict(run) and "device is the limit" not in run_verdict(run)
    assert "GPU busy at most" in texts(run.plot())
    swept = Sweep(lk.Pipeline(), {"batch_size": [8, 64]})
    swept.runs = [run, record(tmp_path, **FED)[0]]
    assert "GPU busy, at most" in texts(draw_sweep(swept))


# -- who decides between launch-bound and compute ------------------------------------------------

LIMIT = {"power_limit_w": 700}
AT_100_W = [s | {"energy_j": 100 * s["t_ns"] / 1e9} for s in samples(power_w=600, **LIMIT)]


@pytest.mark.parametrize(
    "how, readings, bottleneck, words",
    [
        (LAUNCH_BOUND, samples(gpm={"sm": 0.05}), "launch", "5% of"),
        (LAUNCH_BOUND, samples(gpm={"sm": 0.60}), "unsure", "63% of"),
        (LAUNCH_BOUND, samples(power_w=110, gpm={"sm": None}, **LIMIT), "launch", "16% of its"),
        # NVML's power is the mean of the last second; the energy counter has no lag
        (LAUNCH_BOUND, AT_100_W, "launch", "(100 W; NVML"),
        # SM activity goes before power, and the host ahead before both
        (LAUNCH_BOUND, samples(gpm={"sm": 0.1}, power_w=600, **LIMIT), "launch", "10% of"),
        (FED, samples(gpm={"sm": 0.1}, power_w=600, **LIMIT), "compute", ""),
        # A starved card draws little and is not called launch-bound for it
        (FED | {"prep": 20.0}, samples(seconds=6, power_w=250, **LIMIT), "input", ""),
        # A loss outside of the compute needs no witness
        (SYNCED | {"copy": 8.0}, [], "transfer", ""),
        # Nothing was read in the measured steps
        (LAUNCH_BOUND, samples(power_w=110), "unsure", "at most"),  # before the limit was read
        (LAUNCH_BOUND, samples(gpm={"sm": 0.0})[:3], "unsure", "at most"),  # before the first step
    ],
)
def test_who_can_tell_decides(tmp_path, how, readings, bottleneck, words):
    found = record(tmp_path, telemetry=readings, **how)[0].diagnose()
    assert found.bottleneck == bottleneck and words in found.evidence
    assert bottleneck != "compute" or not any("upper" in note for note in found.notes)
    if bottleneck == "unsure":
        assert found.findings[0].cause == HIDDEN and "xray=True" in found.advice
        assert found.findings[1].name == "compute"  # what it would be if there were no gaps
        assert any("upper bound" in note for note in found.notes)


@pytest.mark.parametrize("reasons", [0x20, 0x40, 0x88, 0x4])
def test_a_card_that_is_held_down_is_not_called_waiting_for_the_little_that_it_draws(
    tmp_path, reasons
):
    cold = samples(1.0, power_w=110, clock_reasons=0x1, **LIMIT)
    held = [sample | {"clock_reasons": reasons} for sample in samples(power_w=110, **LIMIT)[5:]]
    found = record(tmp_path, telemetry=cold[:5] + held, **LAUNCH_BOUND)[0].diagnose()
    assert found.bottleneck == "unsure" and "held down" in found.evidence
    assert all(each.name != "launch" for each in found.findings)


def test_heat_that_holds_the_clock_down_is_named_and_the_power_limit_is_not(tmp_path):
    hot = samples(1.0, clock_reasons=0x40, sm_mhz=990.0)
    cool = samples(0.3, clock_reasons=0x4, sm_mhz=1980.0)
    found = record(tmp_path, telemetry=cool + hot, **FED)[0].diagnose()
    first = found.findings[0]
    assert (first.name, first.cause) == ("compute", "throttle") and "50%" in first.evidence
    assert record(tmp_path, telemetry=cool, **FED)[0].diagnose().findings[0].cause != "throttle"


@pytest.mark.parametrize("how, bottleneck", [(LAUNCH_BOUND, "unsure"), (FED, "compute")])
def test_ranks_whose_gpus_look_busy_are_not_called_healthy_either(tmp_path, how, bottleneck):
    spec = {"event": "spec", "version": 1, "run": "r", "pipeline": {}}
    machine = {"event": "machine"}
    lines = [spec | {"ranks": 2}, machine | GPU]
    for rank in range(2):
        own = [
            spec | {"place": {"rank": rank, "world_size": 2}},
            machine | GPU,
            {"event": "begin", "warmup": 3},
            *play(**how)[0],
        ]
        lines += [{**line, "of_rank": rank} for line in own]
    found = load(tmp_path, lines).diagnose()
    assert found.bottleneck == bottleneck
    assert (found.findings[0].cause == HIDDEN) == (bottleneck == "unsure")


# -- cores that are full: launches come late ------------------------------------------------------

CROWDED = {"cpus": 16, "own_cpu": 0.9, "cpu": 0.95, "gpm": {"sm": 0.85}}
WORKERS = KNOBS | {"num_workers": 16}
CALM = {"launch": 8.0, "waits": False}
LATE = {"launch": 8.0, "waits": False, "in_line": 12.0}


def test_launchers_that_stand_in_line_for_a_core_are_the_noisy_neighbour(tmp_path):
    read = samples(seconds=5, launch_line=12 / 20.5, **CROWDED)
    run, busy = record(tmp_path, telemetry=read, knobs=WORKERS, steps=200, **LATE)
    found = run.diagnose()
    first = found.findings[0]
    assert (first.name, first.cause) == ("launch", "neighbour"), found
    # of the gaps that look busy some are the ordinary launches'
    assert 0.5 < first.lost_share < run.utilization - busy + 0.1
    began = f"began {run.queued_ms:.1f} ms after"
    for words in ("59% of the time", "14.4 of 16 cores with 16 workers", began):
        assert words in first.evidence
    assert "Use fewer workers" in first.advice and "at most 40% of the CPU" in first.advice
    assert first.lesson[0].startswith("03")
    foreign = [sample | {"own_cpu": 0.1} for sample in read]
    run, _ = record(tmp_path, telemetry=foreign, knobs=WORKERS, steps=200, **LATE)
    assert "Stop the other programs" in run.diagnose().advice


def test_full_cores_are_no_neighbour_where_the_launches_do_not_wait_or_the_queue_is_full(tmp_path):
    calm = samples(seconds=5, launch_line=0.01, **CROWDED)
    ahead = samples(seconds=5, launch_line=0.5, **CROWDED)
    untold = samples(seconds=5, launch_line=None, **CROWDED)
    for read, how in ((calm, CALM), (ahead, FED | {"waits": False}), (untold, LATE)):
        how = {"steps": 200} | how
        run, _ = record(tmp_path, telemetry=read, knobs=WORKERS, **how)
        assert "neighbour" not in {f.cause for f in run.diagnose().findings}, how


def test_what_a_gap_lost_to_a_neighbour_is_not_lost_once_more_to_launches(tmp_path):
    resting = CROWDED | {"gpm": {"sm": 0.2}}
    read = samples(seconds=5, launch_line=12 / 20.5, **resting)
    run, _ = record(tmp_path, telemetry=read, knobs=WORKERS, steps=200, **LATE)
    lost = sum(f.lost_share for f in run.diagnose().findings if f.name == "launch")
    assert lost <= 0.85


POWERED = {"cpus": 16, "own_cpu": 0.06, "cpu": 0.06, "power_w": 300, "power_limit_w": 400}


def copied_and_waited_for(path, copy, compute, delay=0.0, knobs=KNOBS):
    """The host stands at `.to()` until the last step and the copy are done, then launches."""
    launch, host, free = 20.0, 1000.0, 0.0
    steps, rows = [], []
    for _ in range(100):
        asked, ready = host, host + delay
        begin = max(ready, free)
        copied = begin + copy
        host = copied + launch
        free = copied + compute
        stamps = (asked, ready, ready, host)
        moments = {"t": stamps, "copy": (begin, begin), "busy": (begin, free)}
        steps.append(moments | {"bytes": 147 * 2**20})
        rows += [(0, ready, copied), (1, copied, host)]
    called = (("copy", "images.to()"), ("backward", "loss.backward()"))
    read = samples(seconds=9, **POWERED)
    return watched_log(path, GPU, called, steps, rows, read, knobs=knobs).diagnose()


@pytest.mark.parametrize("delay", [0.0, 30.0, 40.0])
@pytest.mark.parametrize(
    "copy, compute, bottleneck", [(4.0, 90.0, "compute"), (14.0, 60.0, "transfer")]
)
def test_the_wait_for_the_queue_at_a_copy_that_blocks_is_not_the_copys(
    copy, compute, bottleneck, delay, tmp_path
):
    found = copied_and_waited_for(tmp_path, copy, compute, delay)
    assert found.bottleneck == bottleneck, found
    shares = [each.lost_share for each in found.findings if each.name == "transfer"]
    assert all(share == pytest.approx(copy / (copy + compute), abs=0.03) for share in shares)


NOT_WAITED_FOR = "batch = batch.to(device, non_blocking=True)"


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_from_pinned_memory_that_blocks_is_not_to_be_waited_for(pinned, tmp_path):
    knobs = KNOBS | {"pin_memory": pinned}
    first = copied_and_waited_for(tmp_path, copy=14.0, compute=60.0, knobs=knobs).findings[0]
    assert first.cause == "copies" and (first.code.strip() == NOT_WAITED_FOR) == pinned
    assert (first.remedies[0].key == "pin_memory") != pinned


@pytest.mark.parametrize("started, named", [(False, True), (True, False)])
def test_the_knob_against_copies_that_block_is_named_for_a_pipeline_that_pins(
    started, named, tmp_path
):
    knobs = KNOBS | {"pin_memory": True, "non_blocking": started, "prefetch_to_device": True}
    run, _ = record(tmp_path, knobs=knobs, **(SYNCED | {"copy": 8.0}))
    first = run.diagnose().findings[0]
    assert first.cause == "copies"
    assert ({"non_blocking": True} in [each.changes for each in first.remedies]) == named


def synchronised(path, body, busy, **read):
    """Diagnose a loop whose body has these (kind, ms); its device is `busy` from and until, ms.

    Both count from the start of a step, and may reach into the next one.
    """
    length = sum(ms for _kind, ms in body)
    steps, rows = [], []
    for asked in 1000 + length * np.arange(100.0):
        end = asked
        for number, (_kind, ms) in enumerate(body):
            rows.append((number, end, end + ms))
            end += ms
        begin, over = asked + busy[0], asked + busy[1]
        steps.append({"t": (asked, asked, asked, end), "copy": (begin,) * 2, "busy": (begin, over)})
    called = [(kind, f"{kind}()") for kind, _ms in body]
    read = samples(seconds=9, cpus=16, own_cpu=0.06, cpu=0.06, line_cpu=0.0, **read)
    return watched_log(path, GPU, called, steps, rows, read, knobs=KNOBS).diagnose()


@pytest.mark.parametrize("kind", ["python", "update"])
def test_time_of_the_body_is_lost_once_where_the_card_waits_for_it(kind, tmp_path):
    body = (("backward", 20), (kind, 60), ("sync", 20))
    found = synchronised(tmp_path, body, (0, 100), gpm={"sm": 0.1}).findings
    assert found[0].name == "host" and found[0].lost_share > 0.5
    assert sum(each.lost_share for each in found) <= 1.0


@pytest.mark.parametrize("python", [15.0, 25.0, 33.0])
def test_counters_of_the_sms_do_not_hide_python_behind_a_step_that_was_waited_for(python, tmp_path):
    body = (("backward", 15), ("sync", 85 - python), ("python", python))
    sms = {"sm": 0.98 * (1 - python / 100), "tensor": 0.3, "dram": 0.3}
    found = synchronised(tmp_path, body, (0, 100), gpm=sms)
    assert found.bottleneck == "host" and "at most" not in found.three_lines[0], found
    assert found.findings[0].lost_share == pytest.approx(python / 100, abs=0.05)


def test_a_synchronisation_that_keeps_a_gpu_waiting_is_blamed_on_its_line(tmp_path):
    body = (("backward", 20), ("sync", 80))
    found = synchronised(tmp_path, body, (0, 100), gpm={"sm": 0.1}).findings[0]
    assert (found.name, found.cause) == ("launch", "sync")
    assert (found.lines[0].line, found.lines[0].call) == (57, "sync()")


@pytest.mark.parametrize(
    "body, busy",
    [
        ((("backward", 15), ("python", 15), ("sync", 70)), (0, 100)),
        # It waits for an event of the step before; the device has this one's work
        ((("backward", 15), ("sync", 70), ("python", 15)), (85, 185)),
        # The update is launched behind the wait
        ((("backward", 15), ("sync", 60), ("optimizer", 10), ("python", 15)), (0, 100)),
    ],
    ids=["before the wait", "a step behind", "behind a launch"],
)
def test_python_while_the_device_may_have_work_is_hidden_where_the_sms_may_work_all_along(
    body, busy, tmp_path
):
    assert synchronised(tmp_path, body, busy, gpm={"sm": 0.83}).bottleneck == "compute"


@pytest.mark.parametrize(
    "body, busy",
    [
        ((("backward", 20), ("python", 30), ("sync", 50)), (0, 100)),
        ((("copy", 50), ("backward", 20), ("python", 30)), (52, 150)),  # it waits for the last step
    ],
    ids=["a synchronisation", "a copy that blocks"],
)
def test_python_under_queued_work_is_said_to_cost_its_time_at_most(body, busy, tmp_path):
    found = synchronised(tmp_path, body, busy, power_w=300, power_limit_w=400)
    assert found.bottleneck == "host", found
    assert "at most 30% of the time" in found.three_lines[0]
    assert "30% of the time, at most, is lost" in found.evidence


@pytest.mark.parametrize("formats, named", [(("fp16",), False), (("bf16", "fp16"), True)])
def test_tf32_is_named_only_where_the_card_has_it(formats, named):
    told = formats_left(Evidence("gpu", formats=formats, weights_dtype="float32")).words["formats"]
    assert ("TF32" in told) == named and "16 bits" in told


# -- what a trainer does around its steps ----------------------------------------------------------


class Device:
    """A device's clock, whose marks pass at once: what is queued is done by then."""

    def __init__(self):
        self.now = 1000.0

    def mark(self):
        return self.now


@pytest.mark.parametrize("power", [{}, {"gpm": {"sm": 0.95}, "power_w": 660, "power_limit_w": 700}])
def test_an_evaluation_within_an_epoch_is_work_of_the_device(power, tmp_path):
    device = Device()
    stamped = []

    def take(steps):
        stamped.extend(steps)
        return device

    timer = StepTimer([0] * 9, take, device)
    timer.ask(round(device.now * MS))
    rows = []
    evaluated = []

    def goes_on(ms, place):
        rows.append((place, device.now, device.now + ms))
        device.now += ms
        return round(device.now * MS)

    for number in range(200):
        timer.begin(round((device.now + 0.2) * MS))
        goes_on(15.0, 0)
        timer.end(goes_on(85.0, 1))
        timer.ask(round(device.now * MS))
        timer.extend(goes_on(1.0, 1))  # of what is logged the device knows nothing
        if number % 50 == 49:
            timer.extend(goes_on(2000.0, 2), on_device=True)
            evaluated.append(device.now)
        timer.hand_over()
    ends = [step.marks[1] for step in stamped]
    assert ends[49::50] == evaluated
    assert ends[0] < stamped[0].done / MS
    steps = []
    for step in stamped:
        start, end = step.marks
        stamps = [ns / MS for ns in (step.asked, step.ready, step.ready, step.done)]
        steps.append({"t": stamps, "copy": (start, start), "busy": (start, end)})
    read = samples(28.0, cpus=16, own_cpu=0.06, cpu=0.08, line_cpu=0.0, **power)
    called = [(kind, "trainer.train()") for kind in ("forward", "sync", "validation")]
    more = {"knobs": {"num_workers": 2}, "trainer": True}
    run = watched_log(tmp_path, GPU, called, steps, rows, read, **more)
    assert run.utilization > 0.98
    assert run.diagnose().bottleneck == ("compute" if power else "host")


@pytest.mark.parametrize("first", ["loads", "copies"])  # Lightning's order, and accelerate's
@pytest.mark.parametrize("loads, copies, says", [(0.3, 30.0, "transfer"), (130.0, 0.5, "input")])
def test_a_trainers_copy_before_the_step_is_no_waiting_for_data(
    loads, copies, says, first, tmp_path
):
    now = free = 1000.0
    steps = []
    rows = []

    def goes_on(until, place):
        nonlocal now
        rows.append((place, now, until))
        now = until

    for _ in range(100):
        asked = now
        if first == "loads":
            goes_on(now + loads, 2)
        goes_on(max(now, free) + copies, 1)  # blocks: waits for the queue, and copies
        if first == "copies":
            goes_on(now + loads, 2)
        ready = now
        goes_on(now + 10.0, 0)
        free = ready + 100.0
        stamps = (asked, ready, ready, now)
        steps.append({"t": stamps, "copy": (ready, ready), "busy": (ready, free)})
    called = [(kind, "trainer.fit()") for kind in ("forward", "copy", "wait")]
    run = watched_log(tmp_path, GPU, called, steps, rows, knobs={"num_workers": 8})
    found = {each.name: each.lost_share for each in run.diagnose().findings}
    assert found.get(says, 0.0) > 0.15, found
    other = "input" if says == "transfer" else "transfer"
    assert found.get(other, 0.0) < 0.05
