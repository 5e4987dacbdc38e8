"""What a first real GPU meets, told by functions, cells and logs: nothing here needs a card."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from played_gpu import GPU, host_steps, play
from played_gpu import log as logged

import labkit as lk
from labkit import course
from labkit.bench import handoff
from labkit.bench.first_call import FirstCallHook
from labkit.diagnosis import step_table
from labkit.diagnosis.causes.launches import compiled
from labkit.results.hardware import Machine
from labkit.stamps import device_clock
from labkit.stamps.step_classes import body_seconds
from labkit.stamps.step_ring import FinishedStep
from labkit.view.watch_shown import progress_line
from labkit.watching import hook, recorder

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def test_no_notebook_or_challenge_takes_a_card_that_torch_sees_for_one_that_it_can_use():
    """Nor asks torch, which hears of cards for which it may have no kernels."""
    for path in [*Path(course.__file__).parent.rglob("*.py"), *NOTEBOOKS.glob("*.ipynb")]:
        text = path.read_text(encoding="utf-8")
        assert "is_available(" not in text and "current_accelerator(" not in text, path


# -- an Apple GPU, whose own times a watched loop does not have ------------------------------------

MAC = {"device": "mps:0", "kind": "gpu", "name": "Apple GPU (M2)", "cpu_cores": 8, "versions": {}}
WATCHED = {"watched": {"loader": "DataLoader", "length": None}}


@pytest.fixture
def on_a_mac(tmp_path):
    def run(*events, wait_ms=2.0):
        steps = host_steps(wait_ms, 8.0)
        return logged(tmp_path, MAC, {"num_workers": 0}, *events, *steps, spec=WATCHED)

    return run


def test_a_loop_watched_on_a_mac_has_a_rate_and_a_busy_share_only_where_it_waits_for_the_device(
    on_a_mac,
):
    run = on_a_mac()
    assert run.utilization is None
    assert "1600 samples/s, GPU busy unknown, step 10.0 ms" in run.numbers
    assert "too few" not in run.numbers
    assert lk.cost(run, usd_per_hour=1.0).usd_per_epoch > 0
    waits = on_a_mac({"event": "clock", "why": "events say -3 ms of what took 1 ms at most"})
    assert waits.utilization == pytest.approx(0.8)


@pytest.mark.parametrize("wait_ms, named", [(0.1, "unsure"), (9.0, "input")])
def test_the_verdict_on_such_a_loop_is_of_the_host_and_says_so(wait_ms, named, on_a_mac):
    found = on_a_mac(wait_ms=wait_ms).diagnose()
    assert found.bottleneck == named and found.confidence <= 0.5
    assert "the device was not timed" in str(found.details).lower()
    for claim in ("upper bound", "first kernel", "the device computes"):
        assert claim not in str(found.details)
    assert named == "input" or "lk.headroom" in found.advice


def test_the_live_line_of_such_a_loop_has_no_share_of_its_device(tmp_path):
    recording = recorder.Recorder(tmp_path, [1])
    recording.kind = "gpu"
    for i in range(0, 200, 10):
        recording.steps.ask(i)
        recording.steps.begin(i + 8, samples=4)
        recording.steps.end(i + 10)
    recording.steps.write()
    recording.close()
    said = progress_line(recording)
    assert "/s" in said and "busy" not in said and "input" not in said


def test_a_busy_device_into_which_no_x_ray_can_look_is_left_to_its_makers_profiler(tmp_path):
    facts = dict.fromkeys(("gap_us", "tiny_us", "tiny_ops", "elementwise_us", "fusible_us"), 0)
    looked = {"event": "xray", "steps": 4, "window_us": 1000, **facts}
    steps = host_steps(0.0, 10.0)
    run = logged(tmp_path, MAC, lk.Pipeline(device="mps").to_dict(), *steps, looked)
    advice = run.diagnose().advice
    assert "torch.mps.profiler" in advice and "xray=True" not in advice


def test_a_queue_that_fills_is_no_step_that_takes_longer_and_longer():
    """The host issues a step each 3 ms, the card takes 10 ms: the last ones wait in its queue."""
    number = np.arange(100)
    ready = 0.003 * number
    ends = 0.010 * (number + 1)
    stamps = np.column_stack([ready, ready, ready, ready, ends - 0.010, ends])
    assert body_seconds(stamps) == pytest.approx(0.010)


def test_the_format_of_a_model_is_that_of_an_autocast_within_its_forward():
    """As accelerate wraps it, and with it Hugging Face's Trainer."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    first = FirstCallHook(model)
    model(torch.ones(3, 4))
    assert first.given.autocasts and first.given.number_format == "bf16"
    assert first.given.rows == 3
    first.remove()
    assert not model._forward_pre_hooks and not model[0]._forward_pre_hooks


def test_no_hook_lies_within_what_dynamo_compiles_or_torchscript_has(monkeypatch):
    def hooks_in(model):
        FirstCallHook(model)
        return [len(part._forward_pre_hooks) for part in model.modules()]

    def net():
        return torch.nn.Sequential(torch.nn.Linear(4, 2))

    assert hooks_in(net()) == [1, 1]
    assert hooks_in(torch.compile(net(), backend="eager")) == [1, 0, 0]
    in_place = net()
    in_place.compile(backend="eager")
    assert hooks_in(in_place) == [0, 0]
    scripted = net()
    refuses = Mock(side_effect=RuntimeError("not supported on ScriptModules"))
    monkeypatch.setattr(scripted[0], "register_forward_pre_hook", refuses)
    assert hooks_in(scripted) == [1, 0]


# -- cards of other kinds --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device, capability, compiles",
    [
        ("cuda:0", "6.1", False),
        ("cuda:0", None, True),  # ROCm
        ("mps", None, False),
    ],
)
def test_compiling_is_advised_only_where_it_can_act(device, capability, compiles, tmp_path):
    facts = {**GPU, "device": device, "compute_capability": capability}
    assert not Machine.from_dict(facts | {"compile_lacks": "no Triton"}).compiles
    run = logged(tmp_path, facts, lk.Pipeline().to_dict(), *host_steps(1.0, 5.0))
    evidence = step_table.StepTable(run).evidence()
    assert bool(compiled.for_run(evidence)) == compiles


def test_a_loop_on_several_cards_has_no_mfu_of_one():
    model = torch.nn.DataParallel(torch.nn.Linear(8, 4))
    model.device_ids = [0, 1, 2, 3]
    first = FirstCallHook(model)
    first._look(model, (torch.rand(64, 8),), {})
    log = Mock()
    first.write(log, 64)
    assert log.write.call_args.args == ("no_work",)
    assert "4 cards" in log.write.call_args.kwargs["why"]


class PlayedEvent:
    """An event that passes when it is told, on a device's clock that may run fast."""

    def __init__(self, passes_ns, fast):
        self.device_ns = passes_ns * (1 + fast)

    def query(self):
        return True

    def elapsed_time(self, later):
        return float(np.float32((later.device_ns - self.device_ns) / 1e6))  # as CUDA's


@pytest.mark.parametrize(
    "queue_ns, fast, most_off_us",
    [
        (1_000_000_000, 0.0, 1.0),  # a queue that is never empty
        (0, 1e-5, 10.0),
        (0, -1e-5, 10.0),
    ],
)
def test_a_devices_clock_stays_tied_to_the_hosts(queue_ns, fast, most_off_us, monkeypatch):
    step_ns = 200_000_000
    off_us = []

    def write(step):
        off_us.append((step.device[2] - step.stamps[3]) / 1e3)

    clock = device_clock.DeviceClock(torch.device("cpu"), write)
    for number in range(6_000):  # 20 minutes
        passes = step_ns * (number + 1)
        issued = passes - (queue_ns if number else 0)
        start = device_clock.Mark(PlayedEvent(passes, fast), issued)
        end = device_clock.Mark(PlayedEvent(passes + step_ns // 2, fast), issued)
        clock.add(FinishedStep(number, (passes,) * 4, 1, 0.0), (start, end))
        monkeypatch.setattr(device_clock, "now_ns", lambda now=passes + step_ns: now)
        clock.collect()
    assert len(off_us) == 6_000 and max(map(abs, off_us)) < most_off_us


def test_what_a_forked_worker_hands_over_is_not_pinned(monkeypatch):
    pinned = torch.arange(4.0)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor is pinned)
    [handed] = handoff.Ready((pinned,)).batch
    assert torch.equal(handed, pinned) and handed is not pinned


def test_a_step_that_is_captured_into_a_graph_is_left_alone(monkeypatch):
    """Within a capture it is an error to ask an event, or to ask one that was captured."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    steps = hook.OptimizerSteps(Mock(loops=[]))
    steps.recorded = iter(["not asked for"])
    steps(Mock(), (), {})
    assert list(steps.recorded) == ["not asked for"] and not steps.seen


def test_a_watched_loop_has_no_delay_of_launches_for_only_its_batches_are_stamped(tmp_path):
    steps, _ = play(steps=40)
    own = logged(tmp_path, GPU, {"num_workers": 0}, *steps)
    watched = logged(tmp_path, GPU, {"num_workers": 0}, *steps, spec=WATCHED)
    assert own.queued_ms is not None and watched.queued_ms is None
