"""What follows from an experiment's numbers: pure arithmetic, figures of records, no process."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kept_bench import Kept, measured
from played_gpu import load

import labkit as lk
from labkit.analysis.knee import fit
from labkit.bench import formats
from labkit.bench.machine import impose, in_words, refused
from labkit.bench.workbench import Workbench
from labkit.experiments import EXPERIMENTS, Experiment, copies, memory
from labkit.experiments.fusion import break_even_steps, predicted_gain
from labkit.experiments.largest_batch import CONFIRMING_STEPS, FINE, LargestBatch
from labkit.experiments.number_formats import FORMATS
from labkit.experiments.roofline import Roof
from labkit.results.machine import Machine
from labkit.results.measurements import Measurement

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
SHIPPED = [r for r in lk.recorded() if r.experiment]


@pytest.mark.parametrize(
    ("name", "params", "device", "says"),
    [
        ("fusoin", {}, "auto", "Unknown experiment 'fusoin'; did you mean 'fusion'"),
        ("matrix_products", {"size": 3}, "auto", "available: n, count"),
        ("matrix_rates", {"formats": ["fp12"]}, "auto", "use 'fp64', 'fp32'"),
        ("copies", {"pieces": []}, "auto", "at least one value"),
        ("matrix_products", {}, "tpu", "device='tpu'"),
    ],
)
def test_what_is_not_allowed_is_refused_before_anything_starts(name, params, device, says):
    with pytest.raises(ValueError, match=says):
        Experiment(name, params, device)


def test_every_experiment_has_a_panel_and_every_knob_takes_its_default_and_has_help():
    for name, registered in EXPERIMENTS.items():
        assert registered.help and all(knob.help for knob in registered.knobs.values()), name
        params = {knob.name: knob.check(knob.default) for knob in registered.knobs.values()}
        assert Experiment(name).params == params
        assert f"panel of {name} " in repr(lk.panel(name))


@pytest.mark.slow
@pytest.mark.parametrize("record", SHIPPED, ids=lambda record: record.name)
def test_the_figure_of_a_record_says_so_and_no_two_texts_overlap(record):
    done = record.load()
    json.dumps(done.to_dict(), allow_nan=False)
    figure = done.plot(before=done)
    assert bool(figure.axes) == done.has_figure
    said = "\n".join(text.get_text() for text in figure.texts)
    assert "RECORDED on" in said and done.machine.name in said
    figure.canvas.draw()
    found = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    boxes = [text.get_window_extent() for text in found if text.get_text().strip()]
    assert not [1 for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_a_wide_spread_is_noisy_and_a_hostile_record_is_read_as_gaps(tmp_path):
    assert "NOISY: times varied by" in repr(Measurement("x", {}, np.linspace(1, 2.6, 4)))
    bad = {"of": "x", "seconds": ["a", -1, 2.0], "flops": "many", "bytes": {}, "values": []}
    point = record_of(tmp_path, [bad]).points[-1]
    assert list(point.seconds) == [2.0] and point.flops is point.bytes is None


def test_bytes_of_a_chain_are_counted_and_compiling_pays_back():
    assert predicted_gain([2, 2], inputs=3) == 1.5
    assert predicted_gain([2, 2], inputs=3, write_cost=2) == 1.6
    assert predicted_gain([1] * 6, inputs=1) == predicted_gain([1] * 6, 1, write_cost=2) == 6
    assert break_even_steps(10, 0.03, 0.01) == pytest.approx(500)
    assert break_even_steps(10, 0.01, 0.01) is None


def test_a_format_follows_from_its_bits():
    for name in ("fp32", "fp16", "bf16"):
        form, info = FORMATS[name], torch.finfo(formats.FORMATS[name][0])
        assert form.max == info.max and form.eps == info.eps
        assert form.smallest_normal == info.smallest_normal
    assert FORMATS["tf32"].lowest == FORMATS["fp32"].lowest
    assert FORMATS["tf32"].eps == FORMATS["fp16"].eps


def test_only_activations_grow_with_the_batch():
    point = lk.recorded("memory_parts").points[0]
    once, more = (memory.predict(point.values | {"batch_size": size}) for size in (3, 30))
    assert more.activations == 10 * once.activations and more.optimizer == once.optimizer
    size = memory.largest_batch(point.values, 2**30)
    parts = (memory.predict(point.values | {"batch_size": n}).total for n in (size, size + 1))
    assert next(parts) <= 2**30 < next(parts) and memory.largest_batch(point.values, 100) == 0


def record_of(folder, points, name="roofline", machine="Some Card"):
    """Load a record of an experiment that nobody ran: the numbers are chosen, not measured."""
    on = {"device": "cuda:0", "kind": "gpu", "name": machine, "cpu_cores": 8, "versions": {}}
    return load(folder, [
        {"event": "spec", "version": 1, "run": "r", "experiment": name, "params": {},
         "pipeline": {"device": "auto"}},
        {"event": "machine", **on},
        *({"event": "measurement", "case": {}, "values": {}, **point} for point in points),
        {"event": "skipped", "what": "tf32", "why": "not on <this> card"},
        {"event": "done"},
    ])  # fmt: skip


def point(of, flops=None, bytes=None, **case):
    return {"of": of, "flops": flops, "bytes": bytes, "seconds": [0.5] * 5, "case": case}


# Roofs of 100 GB/s, 2 TFLOP/s (fp32) and 8 TFLOP/s (fp16), and four operations
USUAL = [
    point("copy", bytes=50e9, roof="bandwidth"),
    point("scale in place", bytes=40e9, roof="bandwidth"),
    point("matmul", 1e12, 1e9, format="fp32", n=4096, roof="compute"),
    point("matmul", 4e12, 1e9, format="fp16", n=4096, roof="compute"),
    point("matmul", 1e10, 1e10, format="fp32", n=64),
    point("add", 45e9 / 12, 45e9, format="fp32"),
    point("convolution", 8e11, 1e9, format="fp32"),
]


def test_a_record_is_read_and_its_operations_placed(tmp_path):
    faster = point("scale in place", bytes=30e9, roof="bandwidth")  # the fastest counts
    unknown = point("softmax", None, 1e9, format="fp32")
    line = lk.roofline(record_of(tmp_path, [*USUAL, unknown, faster]))
    assert line.roof == Roof(100.0, {"fp32": 2.0, "fp16": 8.0}) and len(line.points) == 5
    assert line.roof.ridge("fp32") == pytest.approx(20)
    assert line.roof.ridge("fp16") == pytest.approx(80)  # a faster format's lies further right
    add, convolution = line.one("add"), line.one("convolution")
    assert add.verdict == "memory bound" and add.intensity == pytest.approx(1 / 12)
    assert add.of_roof == pytest.approx(0.9) and convolution.of_roof == pytest.approx(0.8)
    assert convolution.regime == "compute"
    assert "overhead" in line.one("matmul", n=64, format="fp32").verdict
    assert "RECORDED on Some Card" in repr(line) and json.dumps(line.to_dict())
    with pytest.raises(LookupError, match="no pass over memory"):
        lk.roofline(record_of(tmp_path, USUAL[2:]))
    with pytest.raises(ValueError, match="is not a roofline"):
        lk.roofline(record_of(tmp_path, [], name="copies"))


def test_a_known_card_has_its_data_sheet_dashed(tmp_path):
    for name, known in (("NVIDIA GeForce RTX 4090 D", False), ("NVIDIA H200", True)):
        figure = record_of(tmp_path, USUAL, machine=name).plot()
        said = "\n".join(text.get_text() for text in figure.texts)
        dashed = any(line.get_linestyle() == "--" for line in figure.axes[0].lines)
        assert dashed == known == ("nvidia.com/en-us/data-center/h200/" in said)
        assert f"RECORDED on {name}" in said and "tf32: not on <this> card" in said


def search(fits, start=16, error=None):
    """Search on a device on which up to `fits(steps)` samples fit, and larger ones end so."""
    found = LargestBatch(lk.Pipeline(batch_size=start), 0.1)
    while found.next is not None:
        size, steps = found.next
        there = size <= fits(steps)
        failed = None if there else error
        values = {"fits": there, "why": "out of memory", "steps": steps, "how": "made up",
                  "peak_bytes": size * 2**20, "limit_bytes": 2**30}  # fmt: skip
        found.take(SimpleNamespace(
            params={"batch_size": size, "steps": steps}, machine=Machine.from_dict({}),
            points=[] if failed else [SimpleNamespace(values=values)],
            outcome="failed" if failed else "finished", error=failed,
        ))  # fmt: skip
    return found


@given(true=st.integers(1, 16_384), start=st.integers(1, 4096))
def test_it_is_found_wherever_the_search_begins(true, start):
    done = search(lambda _: true, start)
    assert done.batch_size <= true <= done.batch_size + max(8, done.batch_size // FINE)
    assert len(done.tried) <= 20


def test_what_fits_for_a_few_steps_only_is_not_believed():
    done = search(lambda steps: 100 if steps == CONFIRMING_STEPS else 200)
    assert done.batch_size <= 100 and all(t.batch_size % 8 == 0 for t in done.tried)
    last = [t for t in done.tried if t.fits][-1]
    assert last.confirming and last.batch_size == done.batch_size and done.plot().axes
    none = search(lambda _: 0)
    assert none.batch_size is None and none.tried[-1].batch_size == 1
    assert "no sample fits" in none.line and none.to_dict()["tried"]


def test_only_what_memory_refused_counts_as_not_fitting_and_bad_settings_are_refused():
    assert search(lambda _: 64, error="The bench process was ended by SIGKILL.").batch_size == 64
    with pytest.raises(RuntimeError, match="batch_size=16: TypeError"):
        search(lambda _: 8, error="TypeError: no.")
    for setting, value in (("margin", 1), ("limit_gib", 0)):
        with pytest.raises(ValueError, match=f"{setting}={value}"):
            lk.largest_batch(**{setting: value})
    said = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. can't allocate memory")
    assert refused(MemoryError()) and refused(said) and in_words(said) == "can't allocate memory"
    assert not refused(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_what_a_card_held_before_the_limit_is_not_counted_as_the_trainings(monkeypatch):
    held = {"now": 3 * 2**30, "peak": 5 * 2**30}  # of an earlier model, freed and kept
    for name, stub in {
        "get_device_properties": lambda _: SimpleNamespace(total_memory=16 * 2**30),
        "set_per_process_memory_fraction": lambda *_: None,
        "empty_cache": lambda: held.update(now=0),
        "reset_peak_memory_stats": lambda _: held.update(peak=held["now"]),
        "max_memory_reserved": lambda _: held["peak"],
    }.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    assert impose(CARD, 2**30).used() == 0


def test_one_rule_says_which_formats_make_no_sense_on_a_cpu(monkeypatch):
    slow = {"fp16": 20.0, "fp64": 2.0}
    monkeypatch.setattr(formats, "probe_s", lambda name, _: slow.get(name, 1.0))
    bench = Kept(CPU)
    assert bench.usable(("fp32", "fp64", "tf32", "fp16", "bf16")) == ["fp32", "fp64", "bf16"]
    assert "20x as long" in dict(x.values() for _, x in bench.events)["fp16"]
    before = torch.get_float32_matmul_precision()
    with formats.using("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_the_bench_waits_for_its_own_card_and_only_for_work(monkeypatch):
    waited, second = [], torch.device("cuda", 1)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *device: waited.append(device))
    bench = Workbench(second, SimpleNamespace(write=lambda *_, **__: None), None)
    bench.now()
    assert not waited
    bench.time(lambda: None, of="nothing", min_time_s=0.001)
    assert len(waited) > 3 and set(waited) == {(second,)}


def test_what_a_gpu_cannot_do_is_skipped(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda *_: pytest.fail("it was pinned"))
    bench = Kept(torch.device("meta"))  # a GPU that is no CUDA device
    bench.synchronize = lambda: None
    measured("copies", bench, mib=1, pieces=[1, 4])
    cases = [about["case"] for event, about in bench.events if event == "measurement"]
    assert cases and not any(case["pinned"] for case in cases)
    assert ("skipped", {"what": "pinned", "why": copies.NO_PINS}) in bench.events


def test_the_knee_is_where_the_fixed_part_equals_the_part_per_sample():
    sizes = [1, 4, 16, 64, 256, 1024]
    found = fit(sizes, [5 + 0.1 * size for size in sizes])
    assert found.batch_size == 50 and found.best_throughput == pytest.approx(10_000)
    assert "below 64" in fit([64, 128, 256], [64.0, 128.0, 256.0]).line
    assert "above 4" in fit([1, 2, 4], [5.0, 5.0, 5.0]).line
    assert "NO STRAIGHT LINE" in fit(sizes, [1, 1, 1, 1, 40, 400]).line
    with pytest.raises(ValueError, match="three or more"):
        fit([1, 2], [1.0, 2.0])


def fake(precision, loss, **knobs):
    """Return as much of a Run as a comparison of losses reads."""
    asked = lk.Pipeline(precision=precision, **knobs)
    return SimpleNamespace(asked=asked, pipeline=asked, loss=loss, steps=len(loss),
                           recorded=False, not_applied={})  # fmt: skip


def test_losses_are_held_against_a_tolerance_on_the_same_batches():
    base = fake("fp32", [2.0, 1.0, 1.0, 1.0])
    assert lk.losses(base, fake("bf16", [2.0, 1.0, 1.0, 1.2])).survived
    assert "OUTSIDE" in repr(lk.losses(base, fake("fp16", [2.0, 2.0, 2.0, 2.0])))
    assert not lk.losses(base, fake("fp16", [2.0, 1.0, 1.0, math.nan])).survived
    with pytest.raises(ValueError, match="seed=1"):
        lk.losses(base, fake("bf16", [1.0], seed=1))
