"""Sizes that suit the device, as far as no card is needed; tests/on_standin has six of them."""

from types import SimpleNamespace

import pytest
import torch
from kept_bench import Kept, measured

from labkit.bench import caches, formats
from labkit.bench.formats import using
from labkit.bench.sizes import LONGEST_S, SIDES, fitting
from labkit.bench.workbench import Workbench
from labkit.experiments import copies, own_kernel
from labkit.experiments.matrix_rates import side, usable

# -- choosing a size ---------------------------------------------------------------------------


class Stated(Kept):
    """A bench on a card that is not there: its work is a number, the seconds of a call."""

    def timed(self, work, calls=1):
        self.longest_s = max(self.longest_s, work)
        return work

    launch_s = 6e-6


def stated(tflops, size=None):
    """The time of a product of (n, n) matrices at that rate, for `fitting`."""
    return lambda n: 2 * n**3 / (tflops * 1e12)


@pytest.mark.parametrize(("tflops", "n"), [(4.5, 1024), (20.0, 2048), (80.0, 2048), (700.0, 4096)])
def test_the_size_is_the_smallest_that_takes_twenty_launches(tflops, n):
    bench = Stated(torch.device("cuda", 0))
    assert fitting(stated(tflops), SIDES, bench) == n


@pytest.mark.parametrize(("tflops", "n"), [(0.25, 2048), (1.3, 4096), (4.0, 8192), (700.0, 8192)])
def test_the_largest_size_is_one_whose_call_is_short(tflops, n):
    bench = Stated(torch.device("cuda", 0))
    assert fitting(stated(tflops), SIDES, bench, float("inf")) == n
    assert bench.longest_s <= LONGEST_S


def test_on_a_cpu_sizes_are_as_they_were_and_nothing_is_timed(monkeypatch):
    monkeypatch.setattr(Workbench, "quick_s", lambda *_: pytest.fail("it was timed"))
    bench = Workbench(torch.device("cpu"), None, None)
    assert side(bench, "fp32") == side(bench, "fp64", float("inf")) == 1024
    assert bench.launch_share(1.0, 1) == {}


# -- caches, formats, the clock ----------------------------------------------------------------


@pytest.mark.parametrize(("kind", "times"), [("cpu", 2), ("cuda", 8), ("mps", 8)])
def test_past_the_cache_is_twice_a_cpus_and_eight_times_a_gpus(kind, times, monkeypatch):
    device, l2 = torch.device(kind), 60 * 2**20
    monkeypatch.setattr(caches, "cache_bytes", lambda _: {"L2": l2})
    monkeypatch.setattr(caches, "free_bytes", lambda _: 2**40)
    assert 4 * caches.past_cache_elements(device) == times * l2
    assert caches.is_past_cache(times * l2, device)
    assert not caches.is_past_cache(times * l2 - 1, device)
    monkeypatch.setattr(caches, "free_bytes", lambda _: 12 * 64 * 2**20)
    assert 4 * caches.past_cache_elements(device) == 64 * 2**20  # a twelfth of what is free


def test_one_rule_says_which_formats_make_no_sense_on_a_cpu(monkeypatch):
    slow = {"fp16": 20.0, "fp64": 2.0}
    monkeypatch.setattr(formats, "probe_s", lambda name, _: slow.get(name, 1.0))
    bench = Kept(torch.device("cpu"))
    assert usable(("fp32", "fp64", "tf32", "fp16", "bf16"), bench) == ["fp32", "fp64", "bf16"]
    assert "20x as long" in dict(x.values() for _, x in bench.events)["fp16"]
    measured("precision_matmul", bench, n=64)
    assert not [x for _, x in bench.events if x.get("case") == {"precision": "fp16"}]


def test_the_setting_of_a_format_lasts_as_long_as_its_calls():
    before = torch.get_float32_matmul_precision()
    with using("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_the_bench_waits_for_its_own_card_and_only_for_work(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *device: waited.append(device))
    second = torch.device("cuda", 1)
    bench = Workbench(second, SimpleNamespace(write=lambda *_, **__: None), None)
    bench.now()
    assert not waited
    bench.time(lambda: None, of="nothing", min_time_s=0.001)
    assert len(waited) > 3 and set(waited) == {(second,)}


# -- what a machine lacks ----------------------------------------------------------------------


def test_a_gpu_that_page_locks_nothing_is_measured_without(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda *_: pytest.fail("it was pinned"))
    bench = Kept(torch.device("meta"))  # a GPU that is no CUDA device
    bench.synchronize = lambda: None
    copies.measure(SimpleNamespace(mib=1, pieces=[1, 4]), bench)
    cases = [about["case"] for event, about in bench.events if event == "measurement"]
    assert cases and not any(case["pinned"] for case in cases)
    assert ("skipped", {"what": "pinned", "why": copies.NO_PINS}) in bench.events


def test_our_kernel_is_skipped_where_it_cannot_be_compiled(monkeypatch):
    monkeypatch.setattr(own_kernel.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(own_kernel, "compile_lacks", lambda *_: "no C compiler: install gcc")
    monkeypatch.setattr(own_kernel, "hub", lambda *_: None)
    bench = Kept(torch.device("cuda", 0))
    own_kernel.measure(SimpleNamespace(hub="", load=False), bench)
    assert [about["what"] for _, about in bench.events] == ["triton kernel", "local package"]
    assert all("install gcc" in about["why"] for _, about in bench.events)
