"""MFU and MBU: the FLOPs and bytes of a step, counted, and the peak that they are held against."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import labkit as lk
from labkit.bench import roofline
from labkit.bench.models import MODELS

SIZE = {"batch_size": 5, "width": 32, "depth": 3, "image_px": 32, "device": "cpu"}


@pytest.mark.parametrize("model", ["cnn", "mlp", "transformer"])
def test_the_flops_of_the_courses_models_are_those_that_torch_counts(model):
    job = SimpleNamespace(**lk.Pipeline(model=model).to_dict() | SIZE)
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    counter = FlopCounterMode(display=False)
    with torch.device("meta"):
        trained = MODELS[model](job.width, job.depth, 10, job.image_px)
        images, labels = torch.empty(5, 3, 32, 32), torch.zeros(5, dtype=torch.int64)
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with counter, hooks:
            torch.nn.functional.cross_entropy(trained(images), labels).backward()
    weights = {each.untyped_storage()._cdata: each.nbytes for each in trained.parameters()}
    work = roofline.work_of(job, torch.device("cpu"))
    assert work["flops"] == pytest.approx(counter.get_total_flops(), rel=0.01)
    activations = sum(size for storage, size in kept.items() if storage not in weights)
    total = activations + 4 * sum(weights.values())  # gradients and moments are as large
    assert 0.7 * total < work["held_bytes"] < 1.05 * total  # the meta device keeps scores
    assert work["samples"] == 5


def with_work(name, folder, mfu=None, **changes):
    """Return a recorded run as if its work had been counted, on a roof that gives it this MFU."""
    old = lk.recorded(f"Intel-Xeon-Processor/{name}")  # before work was counted
    roof = {"fp32": old.throughput * 1e6 / (mfu or 1), "bandwidth": 50e9}
    counted = {"flops": 10**6, "bytes": 10**6, "held_bytes": 2**20, "samples": 1}
    work = {"event": "work", "precision": "fp32", "roof": roof, **counted, **changes}
    path = old.save(folder / "run.jsonl", overwrite=True)  # it was edited
    path.write_text(path.read_text() + json.dumps(work) + "\n")
    return lk.load(path)


def test_a_busy_device_with_a_low_mfu_is_a_finding_with_its_reasons(tmp_path):
    run = with_work("precision-fp32", tmp_path, mfu=0.06)
    assert run.mfu == pytest.approx(0.06) and "MFU 6.0% of" in repr(run)
    found = run.diagnose()
    assert (found.bottleneck, found.findings[0].cause) == ("compute", "low_MFU")
    assert "busy, with an MFU of 6.0% (of 23.4 GFLOP/s in FP32, 50 GB/s, " in found.evidence
    assert "measured on " in found.evidence
    good = with_work("precision-fp32", tmp_path, mfu=0.5)
    assert good.diagnose().findings[0].cause == "the_device_is_the_limit"
    (starved, *rest) = with_work("workers-0", tmp_path, mfu=0.01).diagnose().findings
    assert starved.name == "input" and "low_MFU" not in {each.cause for each in rest}


def test_what_is_unknown_is_none_and_where_it_stands_is_a_dash(tmp_path):
    old = lk.recorded("Intel-Xeon-Processor/precision-fp32")
    assert (old.mfu, old.mbu, old.peak) == (None, None, None)
    known = with_work("precision-fp32", tmp_path, mfu=0.26, cache_bytes=2**20)
    assert known.mbu is None  # all that it touches stays in the cache
    assert old.to_dict()["mfu"] is None and known.to_dict()["mfu"] == known.mfu
    assert "MFU 26% of " in repr(known) and "MFU" not in repr(old)
    assert with_work("precision-fp32", tmp_path, mfu=1.2).mfu == 1  # zeros of padding
    assert with_work("precision-fp32", tmp_path, mfu=1.4).mfu is None  # no roof
