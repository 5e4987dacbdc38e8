"""What is said of a machine: its cards, those that torch cannot use, and their data sheets."""

from types import SimpleNamespace
from unittest.mock import Mock

import pynvml
import pytest
import torch

from labkit.analysis.datasheets import card
from labkit.bench import machine as bench_machine
from labkit.results.machine import Machine

NONE = "No CUDA GPUs are available"
INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"


@pytest.fixture
def driver(monkeypatch):
    """A driver with one card, of which torch knows nothing; what torch says can be chosen."""

    def set_up(runs, built, says, visible):
        for name, answer in {
            "nvmlInit": None, "nvmlDeviceGetHandleByIndex": 1, "nvmlDeviceGetName": "NVIDIA T4",
            "nvmlSystemGetDriverVersion": "470.82.01", "nvmlSystemGetCudaDriverVersion": runs,
        }.items():  # fmt: skip
            monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(says)))
        monkeypatch.setattr(torch.version, "cuda", built)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return set_up


@pytest.mark.parametrize(
    ("runs", "built", "says", "visible", "why", "remedy"),
    [
        (12040, "13.0", "too old", None, "driver is too old", f"{INSTALL}cu126, or"),
        (11040, "12.6", "too old", None, "driver is too old", f"525 or newer, then {INSTALL}cu126"),
        (12040, None, "", None, "built without CUDA", f"{INSTALL}cu126"),
        (14000, None, "", None, "built without CUDA", f"{INSTALL}cu130"),
        (12080, "12.6", NONE, "7", "CUDA_VISIBLE_DEVICES='7' hides it", "unset"),
        (12080, "12.6", "Found no driver.\nSee", "0", "Found no driver", "compute,utility"),
    ],
)
def test_a_card_that_torch_cannot_use_is_named_with_the_reason_and_the_remedy(
    runs, built, says, visible, why, remedy, driver
):
    driver(runs, built, says, visible)
    text = bench_machine.unused_gpu()
    assert text.startswith("NVIDIA T4 cannot be used: ") and "\n" not in text
    assert why in text and remedy in text.partition("Remedy: ")[2]
    assert f"driver 470.82.01 runs CUDA up to {runs // 1000}.{runs % 1000 // 10}" in text
    with pytest.raises(RuntimeError, match="device='cuda': NVIDIA T4 cannot be used.*Remedy: "):
        bench_machine.find_device("cuda")


def test_a_card_that_is_not_there_is_not_called_unused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(pynvml, "nvmlInit", Mock(side_effect=pynvml.NVMLError_LibraryNotFound()))
    assert bench_machine.unused_gpu() is None
    with pytest.raises(RuntimeError, match="device='cuda': it is not here, 0 CUDA devices"):
        bench_machine.find_device("cuda")


def test_the_table_and_the_line_say_that_a_card_is_not_used():
    facts = {"device": "cpu", "kind": "cpu", "name": "Some CPU", "cpu_cores": 2, "threads": 1}
    without = Machine.from_dict(facts)
    unused = Machine.from_dict(facts | {"unused_gpu": "NVIDIA T4 cannot be used: why. Remedy: x"})
    assert "no GPU here" in str(without) and "cannot be used" not in without.line
    assert "no GPU here" not in str(unused) and "Remedy: x" in str(unused)


@pytest.mark.parametrize("part", ["", " MIG 1g.5gb"])
def test_nvml_is_asked_for_a_card_or_a_part_of_one_by_its_own_name(part, monkeypatch):
    asked, uuid = [], "MIG-4f6e" if part else "GPU-4f6e"
    here = SimpleNamespace(
        name=f"NVIDIA A100-SXM4-40GB{part}", uuid="4f6e", total_memory=2**30, major=8, minor=0,
        multi_processor_count=14,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: here)
    for call in ("nvmlInit", "nvmlSystemGetDriverVersion"):
        monkeypatch.setattr(pynvml, call, lambda: "550.54")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", asked.append)
    assert bench_machine.describe(torch.device("cuda", 0))["uuid"] == uuid and asked == [uuid]


def test_a_card_has_its_own_data_sheet_and_one_with_a_name_only_alike_has_none():
    sheets = {  # its sheet's name, GB/s, and dense TFLOP/s in FP16
        "Tesla T4": ("T4", 320, 65),
        "Tesla V100-SXM2-32GB": ("V100 SXM2", 900, 125),
        "A100-SXM4-40GB": ("A100 SXM 40 GB", 1555, 312),
        "NVIDIA A100 80GB PCIe": ("A100 PCIe 80 GB", 1935, 312),
        "NVIDIA H100 80GB HBM3": ("H100 SXM", 3350, 989.5),
        "NVIDIA H100 PCIe": ("H100 PCIe", 2000, 756.5),
        "NVIDIA H200": ("H200 SXM", 4800, 989.5),
        "NVIDIA GeForce RTX 4090": ("GeForce RTX 4090", 1008, 165.2),
    }
    for name, sheet in sheets.items():
        found = card(name)
        assert (found.name, found.gb_per_s, found.tflop_per_s["fp16"]) == sheet
    alike = ("NVIDIA GH200 480GB", "NVIDIA H200 NVL", "NVIDIA A100-40C", "GRID T4-8Q",
             "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Tesla V100S-PCIE-32GB", "NVIDIA T400",
             "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU")  # fmt: skip
    assert not [name for name in alike if card(name) is not None]
