"""What is said of a machine: its cards, those that torch cannot use, and their data sheets."""

import os
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pynvml
import pytest
import torch

from labkit import quotas
from labkit.instruments import machine
from labkit.results.device_peaks import card
from labkit.results.hardware import Machine


def answer(monkeypatch, module, answers):
    """Have the functions of a module answer so, whatever they are asked."""
    for name, said in answers.items():
        monkeypatch.setattr(module, name, lambda *_, said=said, **__: said)


def test_a_card_that_torch_cannot_use_is_named_with_torchs_reason_and_a_remedy(monkeypatch):
    known = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByIndex": 1,
        "nvmlDeviceGetName": "NVIDIA T4",
        "nvmlSystemGetDriverVersion": "470.82.01",
    }
    answer(monkeypatch, pynvml, known)
    answer(monkeypatch, torch.cuda, {"is_available": False})
    monkeypatch.setattr(
        torch.cuda, "init", Mock(side_effect=RuntimeError("Driver too old.\nUpdate"))
    )
    text = str(machine.unused_gpu())
    assert text.startswith("NVIDIA T4 cannot be used: ") and "\n" not in text
    assert "Driver too old (" in text and "driver 470.82.01" in text and "pytorch.org" in text
    assert "Remedy: " in text


def test_an_amd_card_is_named_and_not_measured_on(monkeypatch):
    answer(monkeypatch, torch.cuda, {"is_available": True, "device_count": 1})
    answer(monkeypatch, torch.accelerator, {"current_accelerator": torch.device("cuda")})
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert machine.find_device("auto").type == "cpu"
    assert "ROCm cannot be used" in machine.unused_gpu()
    here = Machine.from_dict(machine.describe(torch.device("cuda", 0)))
    assert here.kind == "gpu" and here.name == "ROCm"
    assert here.compute_capability is None


def test_a_card_has_its_own_data_sheet_and_one_with_a_name_only_alike_has_none():
    found = card("NVIDIA GeForce RTX 4090 Laptop GPU")
    assert (found["gb_per_s"], found["tflop_per_s"]["fp16"]) == (576, 79.4)
    assert card("Tesla P100-SXM2-16GB")["tflop_per_s"] == {"fp32": 10.6}  # it has no Tensor Cores
    alike = "NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA T400"
    assert [card(name) for name in alike] == [None] * 3


# -- what a container leaves of a machine ----------------------------------------------------------


@pytest.fixture
def machine_with(tmp_path, monkeypatch):
    """A machine of 64 cores and 1,000 bytes of memory with these files; 32 cores are allowed."""

    def set_up(groups, files):
        for name, text in {**files, "proc/self/cgroup": groups}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(quotas, "ROOT", tmp_path)
    answer(monkeypatch, os, {"cpu_count": 64})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(32)}, raising=False)
    answer(monkeypatch, psutil, {"virtual_memory": SimpleNamespace(total=1000)})
    return set_up


def group(place, cpu, memory="max"):
    """Return the files of one control group."""
    folder = f"sys/fs/cgroup{place}"
    return {f"{folder}/cpu.max": f"{cpu} 100000", f"{folder}/memory.max": memory}


MACHINES = {  # (the process's groups, files): cores, why, memory
    "a quota of the group above": (
        ("0::/pod/app", group("/pod/app", "max") | group("/pod", 400000, "500")),
        (4, "quota", 500),
    ),
    "a quota of the root's, not this process's": (
        ("0::/app", group("/other", 100000)),
        (32, "affinity", 1000),
    ),
    "version 1": (
        (
            "3:memory:/docker/c4/app\n2:cpu,cpuacct:/docker/c4",
            {
                "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "150000",
                "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "50000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "700",
            },
        ),
        (3, "quota", 700),
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_process_has_the_cores_and_the_memory_that_its_container_leaves_it(name, machine_with):
    files, (cores, why, memory) = MACHINES[name]
    machine_with(*files)
    assert quotas.cpu_cores() == quotas.Cores(cores, 64, why)
    assert quotas.ram_bytes() == memory


def test_a_quota_is_what_the_machine_the_model_and_the_tuner_go_by(machine_with, monkeypatch):
    machine_with("0::/app", group("/app", 800000, "400"))
    threads = Mock()
    monkeypatch.setattr(torch, "set_num_threads", threads)
    machine.use_fixed_threads()
    threads.assert_called_once_with(2)
    here = Machine.from_dict(machine.describe(torch.device("cpu")))
    assert here.cpu_cores == 8
    assert "8 of 64 (quota) CPU cores" in here.line and "quota" in str(here)
