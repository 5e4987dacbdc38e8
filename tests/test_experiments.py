"""Every experiment, small and for real: what it counts, what it skips and why, what follows.

Times are whatever the machine gives: only counts, cases and wide relations are asserted. Most run
in this process; what a process of its own is needed for is launched.
"""

import functools
import importlib.util
import json
import subprocess
import sys

import pytest
from kept_bench import here

import labkit as lk
from labkit.bench import workbench
from labkit.experiments import Experiment, accumulation, fusion, memory, own_cost
from labkit.experiments import largest_batch as search
from labkit.experiments.number_formats import FORMATS
from labkit.results.launch import launch
from labkit.spec import compiler

pytestmark = pytest.mark.slow

SMALL = {
    "anatomy": {},
    "copies": {"mib": 4, "pieces": [1, 4096, 1 << 30]},
    "bandwidth": {"largest_mib": 4},
    "matrix_rates": {"n": 128},
    "matrix_slices": {"n": 256, "slices": [32, 256, 1000], "small": 16},
    "matrix_sizes": {"around": 128, "formats": ["fp32"]},
    "eager_chain": {"mib": 16, "lengths": [1, 4]},
    "one_thread": {"seconds": 0.2},
    "roofline": {"mib": 16, "n": 256, "formats": ["fp32", "bf16"], "sizes": [32, 128]},
    "batch_path": {"mib": 1},
    "number_formats": {"count": 10_000},
    "autocast_types": {},
    "precision_matmul": {"n": 128},
    "underflow": {"px": 192, "steps": 11},
    "fusion": {"mib": 2, "length": 2},
    "inference": {"width": 64, "depth": 1, "length": 8, "batches": [1], "image_model": "mlp"},
    "memory_parts": {"batch_size": [4, 16], "image_px": 32},
    "accumulation": {"micro": 4, "count": 4},
    "accumulation_cost": {"effective": 16, "model": "mlp", "image_px": 32, "seconds_each": 0.01},
    "item_ladder": {"px": 16, "batch_size": 4},
    "worker_memory": {"items": 20_000, "workers": 1},
    "epoch_start": {"workers": 1, "epochs": 2},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setitem(workbench.Workbench.time.__kwdefaults__, "min_time_s", 0.01)
    monkeypatch.chdir(tmp_path)


@functools.cache
def measured(name):
    return here(name, **SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_it_measures_saves_loads_and_draws_and_leaves_no_file(name, tmp_path):
    done = measured(name)
    assert done.points and done.name == name and not list(tmp_path.iterdir())
    again = lk.load(done.save(tmp_path / "record.jsonl.gz"))
    assert [p.to_dict() for p in again] == [p.to_dict() for p in done]
    json.dumps(again.to_dict(), allow_nan=False)
    assert again.plot(before=done).get_figwidth() * 100 <= 900


def test_bytes_and_flops_are_counted():
    copies, path = measured("copies"), measured("batch_path")
    assert {copies.one("copy", pieces=pieces).bytes for pieces in (1, 4096)} == {4 * 2**20}
    assert f"{1 << 30} pieces" in copies.skipped
    assert path.one("page cache to RAM").bytes == 2**20 and path.one("RAM to core").gb_per_s
    points = measured("bandwidth").where("copy")
    sizes = [point.case["array_bytes"] for point in points]
    assert sizes == sorted(sizes) and sizes[-1] == 4 * 2**20
    assert all(point.bytes == 2 * point.case["array_bytes"] for point in points)
    one, four = (measured("eager_chain").one("in turn", operations=count) for count in (1, 4))
    assert one.bytes == 2 * 16 * 2**20 and four.bytes == 4 * one.bytes
    slices = measured("matrix_slices")
    whole = slices.one("at once")
    assert {p.flops for p in slices.where("in slices")} == {whole.flops} == {2 * 256**3}
    assert slices.one("32 small ones").flops == 32 * 2 * 16**3 and "1000 slices" in slices.skipped
    cases = {p.case["n"]: p.case["multiple"] for p in measured("matrix_sizes")}
    assert cases == {64: 64, 96: 32, 120: 8, 127: 1, 128: 64, 129: 1, 136: 8, 160: 32, 192: 64}


def test_what_a_cpu_has_not_got_is_skipped_with_a_reason():
    assert measured("anatomy").one("device").values["cores"] >= 1
    assert 0 < measured("one_thread").one(threads=1).values["meter"] <= 1.1  # % CPU, of one core
    rates, products = measured("matrix_rates"), measured("precision_matmul")
    of = {point.of for point in rates}
    assert of | set(rates.skipped) == {"fp64", "fp32", "tf32", "fp16", "bf16"}
    assert not of & set(rates.skipped) and rates.one("fp32").flops == 2 * 128**3
    for name in set(FORMATS) - set(products.skipped):
        assert products.one("error", precision=name).values["relative"] < 4 * FORMATS[name].eps
    for name, words in {
        "copies": "no bus", "batch_path": "PCIe", "number_formats": "Tensor Cores",
        "fusion": "CUDA graph", "matrix_rates": "Tensor Cores",
    }.items():  # fmt: skip
        assert words in str(measured(name).skipped), name


def test_the_measured_roofline_places_what_was_counted():
    line = lk.roofline(measured("roofline"))
    assert line.one("add").intensity == pytest.approx(1 / 12)
    assert line.one("layer norm").intensity == pytest.approx(7 / 8)
    assert line.one("matmul", n=128, format="fp32").intensity == pytest.approx(128 / 6)
    assert set(line.roof.tflop_per_s) | set(measured("roofline").skipped) == {"fp32", "bf16"}


def test_formats_are_found_on_real_tensors_and_under_autocast():
    found, types = measured("number_formats"), measured("autocast_types")
    for name in ("fp32", "fp16", "bf16"):
        assert found.one("limits", format=name).values["smallest"] == FORMATS[name].smallest
        assert found.one("rounding", format=name).values["worst"] <= FORMATS[name].eps / 2
    out = {point.case["op"]: point.values for point in types.where("output")}
    assert out["matmul"]["from fp32"] == "bf16" and out["add"]["from fp32"] == "fp32"
    full, half = (types.one("kept", precision=name).values["mib"] for name in ("fp32", "bf16"))
    assert 0 < half < full


def test_gradients_vanish_in_fp16_and_the_scaler_brings_them_back():
    names = "fp32", "fp16, no scaler", "fp16, scaler", "fp16, scaler too high", "fp16, fixed factor"
    full, alone, scaled, high, fixed = (
        measured("underflow").one("training", case=name).values for name in names
    )
    assert alone["dtype"] == "float16" and full["zeros"] < 0.01
    assert alone["zeros"] > 2 * scaled["zeros"] + 0.2 and scaled["loss"][-1] < alone["loss"][-1]
    assert high["skipped"][0] and not all(high["skipped"])
    assert high["scale"][1] == high["scale"][0] / 2
    assert fixed["loss"][-1] is None  # NaN, a gap in the record


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_a_chain_is_fused_and_its_kernel_shown_and_without_a_compiler_nothing_is(monkeypatch):
    fused = measured("fusion")
    assert all(point.values["kernels"] == 1 for point in fused.where("compile"))
    kernel = fused.one("kernel").values["code"]
    assert ("for" in kernel or "triton" in kernel) and "#include" not in kernel
    eager, one = (fused.one(way, chain="a + b + c", mib=2) for way in ("eager", "fused"))
    assert eager.bytes / one.bytes == fusion.largest(fused)[0].predicted == 1.5
    assert all(gain.array_mib == 2 and gain.measured > 0 for gain in fusion.largest(fused))
    tiny = {point.case["way"]: point for point in fused.where("tiny")}
    assert min(tiny["eager"].seconds) > 2 * min(tiny["compiled"].seconds)
    lacking = "no C++ compiler: install gcc"
    monkeypatch.setattr(workbench.Workbench, "compile_lacks", lambda _: lacking)
    done = here("fusion", **SMALL["fusion"])
    assert done.skipped["fused"] == lacking
    assert done.where("eager") and not done.where("fused") and not done.where("compile")
    assert "not measured" in str(fusion.largest(done)[0]) and not done.plot().axes


def test_graph_breaks_are_found_and_removed():
    done = launch(Experiment("graph_breaks")).wait()  # Dynamo's limits are a process's own
    broken = done.one("explain", function="broken").values
    assert broken["breaks"] >= 1 and broken["graphs"] == broken["breaks"] + 1 and broken["reasons"]
    whole = done.one("explain", function="whole").values
    assert whole == {"graphs": 1, "breaks": 0, "reasons": []}
    every, default, dynamic, padded = (point.values for point in done.where("captures"))
    assert every["captured"] == every["limit"] < every["calls"] and every["eager"] > 0
    assert padded["captured"] == 1 and padded["eager"] == dynamic["eager"] == 0
    assert dynamic["captured"] <= default["captured"] < every["captured"] and default["log"]


def test_memory_is_predicted_within_a_tenth_of_what_is_measured():
    assert len(measured("memory_parts")) == 6
    for point in measured("memory_parts"):
        said, seen = memory.predict(point.values), memory.measured(point)
        assert said.mib == pytest.approx(seen.mib, rel=0.1), point.case
        assert "tensors themselves" in point.values["how"]


def test_micro_batches_add_up_and_every_mistake_is_seen_and_cured():
    compared = measured("accumulation")
    for point in compared.where("equivalence"):
        assert point.values["error"] < {"float32": 1e-6, "float64": 1e-14}[point.case["dtype"]]
    mistakes = {point.case["name"]: point.values for point in compared.where("mistake")}
    assert set(mistakes) == set(accumulation.MISTAKES)
    for name, values in mistakes.items():
        assert values["error"] > 1e-4 and values["cured"] < 1e-13, name
    assert mistakes["no division by the number of steps"]["error"] == pytest.approx(3)
    assert compared.one("hidden by Adam").values["error"] < 0.01
    cost = measured("accumulation_cost")
    parts = {point.case["micro"]: memory.measured(point) for point in cost.where("memory")}
    assert list(parts) == [1, 2, 4, 8, 16] and len(cost.where("update")) == 5
    assert parts[1].activations < parts[16].activations / 8
    assert parts[1].optimizer == pytest.approx(parts[16].optimizer, rel=0.01)


def test_the_scaling_rule_holds_at_four_times_and_breaks_at_sixty_four(monkeypatch):
    monkeypatch.setattr(accumulation, "TRAINED", 64)
    monkeypatch.setattr(accumulation, "HELD_OUT", 16)
    tiny = here("lr_scaling", seeds=1, epochs=1, width=4, depth=1)
    assert all(point.values["samples"][-1] == 64 for point in tiny) and tiny.plot().axes
    assert "more than the 64 training images" in str(tiny.skipped)
    held_out = {point.of: point.values["held_out"][0] for point in lk.recorded("lr_scaling")}
    assert held_out["batch x4, same lr"] > 2 * held_out["base"]
    assert held_out["batch x4, lr x4"] < 0.5 * held_out["batch x4, same lr"]
    assert held_out["batch x64, lr x64, warm-up"] > 2 * held_out["batch x4, lr x4, warm-up"]


def test_an_experiment_runs_apart_and_one_that_fails_says_why():
    done = lk.measure("matrix_products", n=8, count=16)
    assert done.outcome == "finished", done.error
    assert [point.of for point in done] == ["one by one", "batched"]
    batched = done.one("batched", n=8)
    assert batched.flops == 2 * 16 * 8**3 and lk.measure.last is done
    with pytest.raises(LookupError, match="there are 0 of them"):
        done.one("batched", n=9)
    failed = launch(Experiment("matrix_products", {"n": 1 << 16, "count": 1 << 16})).wait()
    assert failed.outcome == "failed" and failed.error and not failed.points


def test_the_own_kernel_and_package_are_checked_or_say_how_to_install_what_they_lack():
    own = launch(Experiment("own_kernel", {"hub": "labkit/no-such-kernel"})).wait()
    assert own.outcome == "finished", own.error
    for what in ("triton kernel", "local package"):
        points = own.where(what)
        assert bool(points) != (what in own.skipped)
        assert all(point.values["largest difference"] < 1e-6 for point in points)
        assert points or "labkit[kernels]" in own.skipped[what]
    assert own.skipped.get("hub kernel") or not own.one("hub kernel").values["loaded"]
    if importlib.util.find_spec("triton"):
        interpreted = own.where("triton kernel")[0].values["interpreted"]
        assert interpreted == (own.machine.kind == "cpu") != bool(own.where("time"))


def test_a_real_limit_on_memory_is_found_and_refuses_without_harm(monkeypatch):
    monkeypatch.setattr(search, "FINE", 2)
    done = lk.largest_batch(model="mlp", width=64, depth=1, batch_size=1024, limit_gib=0.1)
    assert done.batch_size and lk.largest_batch.last is done
    refused = [t for t in done.tried if not t.fits]
    assert refused[0].why and all(t.batch_size > done.batch_size for t in refused)
    assert done.limit_gib == pytest.approx(0.1) and done.plot().axes


def test_the_kit_measures_its_own_cost_without_a_warning(monkeypatch):
    monkeypatch.setattr(own_cost, "STEPS", 300)
    cost = own_cost.recorder_cost()
    assert cost["recorder_step_ms"] > 0 and abs(cost["recorder_cost_share"]) < 1
    costs = dict.fromkeys(own_cost.CLAIMS, 0.1) | {"machine": "here"}
    assert "import labkit" in str(own_cost.table(costs))


def test_importing_the_experiments_imports_neither_torch_nor_matplotlib():
    code = (
        "import sys, labkit.experiments\n"
        "print({'torch', 'matplotlib', 'labkit.experiments.own_cost'} & set(sys.modules))"
    )  # `python -m labkit.experiments.own_cost` would warn of one that is imported already
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
