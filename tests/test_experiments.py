"""Every experiment, small and for real: what it counts, what it skips and why, what follows.

Times are whatever the machine gives: only counts, cases and wide relations are asserted. Most run
in this process; what a process of its own is needed for is launched.
"""

import functools
import json
import subprocess
import sys

import pytest
from kept_bench import here

import labkit as lk
from labkit.bench import workbench
from labkit.experiments import Experiment, fusion, own_cost
from labkit.experiments.number_formats import FORMATS
from labkit.results.launch import launch

pytestmark = pytest.mark.slow

SMALL = {  # the notebooks run all of them, and draw them
    "copies": {"mib": 4, "pieces": [1, 4096, 1 << 30]},
    "bandwidth": {"largest_mib": 4},
    "matrix_rates": {"n": 128},
    "matrix_slices": {"n": 256, "slices": [32, 256, 1000], "small": 16},
    "matrix_sizes": {"around": 128, "formats": ["fp32"]},
    "eager_chain": {"mib": 16, "lengths": [1, 4]},
    "one_thread": {"seconds": 0.2},
    "batch_path": {"mib": 1},
    "number_formats": {"count": 10_000},
    "precision_matmul": {"n": 128},
    "fusion": {"mib": 2, "length": 2},
    "item_ladder": {"px": 16, "batch_size": 4},
    "worker_memory": {"items": 20_000, "workers": 1},
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
    copies = measured("copies")
    assert {copies.one("copy", pieces=pieces).bytes for pieces in (1, 4096)} == {4 * 2**20}
    assert f"{1 << 30} pieces" in copies.skipped
    points = measured("bandwidth").where("copy")
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


def test_a_chain_is_not_fused_without_a_compiler(monkeypatch):
    lacking = "no C++ compiler: install gcc"
    monkeypatch.setattr(workbench.Workbench, "compile_lacks", lambda _: lacking)
    done = here("fusion", **SMALL["fusion"])
    assert done.skipped["fused"] == lacking
    assert done.where("eager") and not done.where("fused") and not done.where("compile")
    assert "not measured" in str(fusion.largest(done)[0]) and not done.plot().axes


def test_an_experiment_runs_apart_and_one_that_fails_says_why():
    done = lk.measure("matrix_products", n=8, count=16)
    assert done.outcome == "finished", done.error
    assert done.one("batched", n=8).flops == 2 * 16 * 8**3 and lk.measure.last is done
    with pytest.raises(LookupError, match="there are 0 of them"):
        done.one("batched", n=9)
    failed = launch(Experiment("matrix_products", {"n": 1 << 16, "count": 1 << 16})).wait()
    assert failed.outcome == "failed" and failed.error and not failed.points


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
