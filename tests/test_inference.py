"""Inference: decode against the law of bandwidth, in numbers made up and in small real ones."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from kept_bench import here

import labkit as lk
from labkit.bench.models import packed
from labkit.experiments import inference
from labkit.process.events import VERSION, EventLog
from labkit.results.measurements import Measurements
from labkit.spec import Experiment

SMALL = {"width": 64, "depth": 2, "length": 16, "batches": [1, 4], "image_model": "mlp"}
WEIGHTS, GB_PER_S, TFLOP_PER_S = 400e6, 20.0, 0.2


def made_up(folder, prefill=0.01e12):
    """Return measurements whose decode takes 1.2x the law, on 20 GB/s and 200 GFLOP/s."""
    log, spec = EventLog(folder), Experiment("inference")
    log.write("spec", version=VERSION, run="x", labkit="x", **spec.to_spec())
    log.write("machine", device="cpu", kind="cpu", name="a <CPU>", versions={})

    def write(of, seconds, flops=None, bytes=None, values=None, **case):
        log.write("measurement", of=of, case=case, seconds=seconds, flops=flops, bytes=bytes,
                  values=values or {})  # fmt: skip

    write("sum", [0.05], bytes=GB_PER_S * 0.05e9, roof="bandwidth")
    write("packed matmul", [0.1], flops=TFLOP_PER_S * 0.1e12, roof="compute", format="fp32")
    size = {"width": 1024, "depth": 8, "length": 64, "weights_bytes": WEIGHTS}
    write("prefill", [0.1], flops=prefill, format="fp32", batch=1, values=size)
    for batch in (1, 4, 16, 64):
        cache = 1e6 * batch
        memory = (WEIGHTS + cache) / (GB_PER_S * 1e9)
        compute = batch * WEIGHTS / 2 / (TFLOP_PER_S * 1e12)
        law = max(memory, compute)
        values = {"cache_bytes": cache, "bandwidth_s": memory, "compute_s": compute}
        took = [law * 1.2] * 98 + [law * 2] * 2 if batch == 1 else [law * 1.2]
        write("decode", took, batch * WEIGHTS / 2, WEIGHTS + cache, values, format="fp32",
              batch=batch, way="eager")  # fmt: skip
    for batch in (1, 2, 4, 8, 16):
        write("image", [1e-3 * (4 + batch)], batch=batch)
    log.write("done")
    log.write("end", stop=None, code=0)
    log.close()
    return Measurements(folder)


@pytest.mark.parametrize(("reached", "mfu"), [(1.1, 1.0), (1.35, None)])
def test_the_mfu_of_prefill_is_never_above_1(tmp_path, reached, mfu):
    found = lk.inference(made_up(tmp_path, prefill=reached * 0.1 * TFLOP_PER_S * 1e12))
    assert found.prefill_mfu("fp32") == mfu
    assert ("MFU of prefill: fp32 unknown" in str(found.table())) == (mfu is None)


def test_the_law_the_ratio_and_where_it_becomes_compute_bound(tmp_path):
    found = lk.inference(made_up(tmp_path))
    first = found.one("fp32")
    assert first.predicted_ms == pytest.approx(20.05) and first.bound == "memory"
    assert first.ratio == pytest.approx(1.2) and first.mbu == pytest.approx(1 / 1.2)
    assert first.tokens_per_s == pytest.approx(1e3 / (1.2 * 20.05))
    assert [s.bound for s in found.steps] == ["memory", "memory", "memory", "compute"]
    assert first.p99_ms == pytest.approx(2 * 20.05) and found.one("fp32", 4).p99_ms is None
    [last] = found.eager("fp32", "compute")
    assert last.batch == 64 and last.mbu < 0.5 and last.gflop_per_s == pytest.approx(200)
    assert found.prefill_mfu("fp32") == pytest.approx(0.5) and found.prefill_mfu("bf16") is None
    assert found.image_knee.batch_size == 4  # of 4 + B ms
    text = str(found.table())
    assert "at most 1.20x as long as reading the weights, up to batch 16" in text
    assert "compute-bound from batch 64 on, where products reach 200 GFLOP/s" in text
    assert "20 GB/s" in text and "fp32 50%" in text and "400 MB of weights" in text
    assert json.loads(json.dumps(found.to_dict(), default=str))["steps"][0]["ratio"]
    with pytest.raises(LookupError, match="bf16, batch 1, eager was not measured"):
        found.one("bf16")


def test_the_figure_says_it(tmp_path):
    figure = made_up(tmp_path).plot()
    upper, lower = figure.axes
    legend = [text.get_text() for text in upper.get_legend().get_texts()]
    assert legend == ["fp32", "fp32, law", "compute-bound from here on"]
    assert [line.get_linestyle() for line in upper.lines] == ["-", "--", "None"]
    assert list(upper.lines[2].get_xdata()) == [64]
    assert lower.lines[1].get_ydata()[-1] == pytest.approx(16 * 5 / 20)


def test_other_measurements_are_refused():
    with pytest.raises(ValueError, match="is no inference"):
        lk.inference(lk.recorded("roofline"))
    with pytest.raises(ValueError, match="Unknown"):
        lk.measure("inference", lenght=3)


@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8"])
@torch.no_grad()
def test_packed_weights_compute_the_same(weights):
    torch.manual_seed(0)
    kind = torch.float32 if weights == "fp32" else torch.bfloat16
    layer, x = torch.nn.Linear(64, 96).to(kind), torch.randn(5, 3, 64).to(kind)
    plain = layer(x).float()
    with torch.inference_mode():
        got = packed(layer, weights, on_cpu=True)(x).float()
    assert layer.weight is None and got.shape == plain.shape
    assert torch.allclose(got, plain, atol=1e-5 if weights == "fp32" else 0.05)


@torch.no_grad()
def test_int8_weights_give_back_the_format_they_were_given(monkeypatch):
    """CUDA's product returns FP32, and attention refuses two formats."""
    cpu = torch._weight_int8pack_mm
    monkeypatch.setattr(torch, "_weight_int8pack_mm", lambda *given: cpu(*given).float())
    layer = packed(torch.nn.Linear(64, 96).bfloat16(), "int8", on_cpu=False)
    assert layer(torch.randn(5, 3, 64).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("free_gib", [5, 7, 11, 15, 23, 79])
def test_the_decoder_leaves_a_card_room_for_the_caches_of_eight_sequences(free_gib):
    def bench(free):
        return SimpleNamespace(on_cpu=False, free_bytes=lambda: free)

    free, width, length = free_gib * 2**30, 4096, inference.LENGTH[False]
    depth = inference.depth_for(width, 0, bench(free))
    weights = 4 * (12 * width**2 * depth)
    kept = 4 * 2 * 8 * length * width * depth
    room = free - weights - 2**29  # arrays for the roofs
    assert kept <= inference.CACHE_SHARE * room and (depth == 8) == (free_gib > 23)


@pytest.mark.slow
def test_a_small_decoder_is_measured_in_every_format():
    measured = here("inference", **SMALL)
    found = lk.inference(measured)
    formats = {s.format for s in found.steps}
    assert "fp32" in formats and formats | set(measured.skipped) >= {"fp32", "bf16", "int8"}
    matrices = 12 * 64**2 * 2 + 256 * 64
    for name, batch in itertools.product(formats, (1, 4)):
        assert found.one(name, batch).compute_ms > 0
        (point,) = measured.where("decode", format=name, batch=batch, way="eager")
        numbers = {"fp32": 4, "bf16": 2, "int8": 1}[name]
        cache = 2 * batch * 16 * 64 * 2 * max(2, numbers)
        assert point.bytes == matrices * numbers + cache and point.values["cache_bytes"] == cache
        assert point.flops == batch * (2 * matrices + 4 * 64 * 2 * 16)
    assert {p.case["mode"] for p in measured.where("autograd")} >= {"inference_mode", "neither"}
    assert len(measured.where("image")) > 2 and measured.plot().axes
