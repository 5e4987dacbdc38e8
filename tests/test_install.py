"""What a newcomer installs and calls first: the package that is found, and a device that is not."""

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pynvml
import pytest
import torch

import labkit as lk
from labkit.instruments import machine
from labkit.process import launcher
from labkit.results import hardware
from labkit.watching.recorder import machine_and_clock

ROOT = Path(lk.__file__).parents[1]
UNUSED = "NVIDIA T4 cannot be used: its driver is too old. Remedy: a newer one"


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["labkit", "labkit/labkit", "labkit/labkit/__pycache__"])
def test_a_folder_called_labkit_in_the_working_directory_does_not_hide_the_package(
    beside, tmp_path
):
    (tmp_path / beside).mkdir(parents=True)
    code = "import labkit; print(labkit.__file__, labkit.run)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert str(Path(lk.__file__)).encode() in done.stdout, done.stderr


def test_the_course_is_installed_whole_and_its_name_is_free():
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert "." in requirements and not any(line.startswith("-e") for line in requirements)
    assert '\nname = "gpu-labkit"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [torch_range] = [line for line in requirements if line.startswith("torch")]
    assert f'pip install "{torch_range}"' in (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.compile(r"pip install '?labkit\b")
    files = [*ROOT.glob("labkit/**/*.py"), *ROOT.glob("notebooks/**/*.ipynb")]
    assert not [path for path in files if named.search(path.read_text(encoding="utf-8"))]


@pytest.fixture
def here(monkeypatch):
    """Tell what devices this machine has; no process starts, and `asked` counts the questions."""
    monkeypatch.setattr(launcher, "stand_by", Mock())
    monkeypatch.setattr(launcher, "starting", Mock(side_effect=AssertionError("a run started")))
    hardware.machine.cache_clear()

    def tell(*answers):
        asked = Mock(side_effect=list(answers) + [answers[-1]] * 9)
        monkeypatch.setattr(hardware, "facts_of_this", asked)
        return asked

    yield tell
    hardware.machine.cache_clear()


@pytest.mark.parametrize(
    "device, has, unused, says",
    [
        ("cuda:9", ["cpu"], None, "it is not here: use one of 'auto', 'cpu'."),
        ("mps", ["cpu"], None, "it is not here"),
        ("cuda", ["cpu"], UNUSED, "NVIDIA T4 cannot be used.*Remedy: a newer one"),
        ("cuda:2", ["cpu", "cuda:0"], None, "it is not here: use one of 'auto', 'cpu', 'cuda:0'"),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda pipeline: lk.run(pipeline),
        lambda pipeline: lk.sweep(pipeline, batch_size=[1, 2]),
        lambda pipeline: lk.sweep(device=["cpu", pipeline.device]),
        lambda pipeline: lk.tune(pipeline),
        lambda pipeline: lk.improve(pipeline),
        lambda pipeline: lk.measure(lambda bench, n: None, n=[1], device=pipeline.device),
        lambda pipeline: lk.panel(pipeline, knobs=["num_workers"]).run_of(num_workers=2),
    ],
)
def test_a_device_that_is_named_and_not_here_is_refused_before_anything_starts(
    call, device, has, unused, says, here
):
    here({"devices": has, "unused_gpu": unused})
    with pytest.raises(ValueError, match=f"device='{device}': {says}"):
        call(lk.Pipeline(device=device))


def test_ranks_without_a_card_each_are_refused(here):
    here({"devices": ["cpu", "cuda:0"]})
    with pytest.raises(ValueError, match="device='cuda': 2 ranks need a card each and 1 can"):
        lk.distributed(device="cuda", ranks=2)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda:1", "cuda:0"])
def test_a_device_that_is_here_is_taken_also_where_it_was_hidden_before(device, here):
    hidden = {"devices": ["cpu"]}
    asked = here(hidden, {"devices": ["cpu", "cuda:0", "cuda:1"]})
    with pytest.raises(AssertionError, match="a run started"):
        lk.run(device=device)
    assert asked.call_count == (2 if device.startswith("cuda") else 0)


@pytest.fixture
def no_driver(monkeypatch):
    """A torch for CUDA whose driver is missing or too old, where NVML still counts a card."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused = Mock(side_effect=AssertionError("CUDA was started"))
    for name in ("get_device_capability", "get_device_properties", "get_device_name", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, refused)
    monkeypatch.setattr(pynvml, "nvmlInit", Mock(side_effect=pynvml.NVMLError(1)))


def test_nothing_starts_cuda_where_there_is_no_driver(no_driver):
    assert machine.find_device("auto").type == "cpu"
    assert set(machine.usable()) <= {"cpu", "mps"}
    fake = Mock(device=torch.device("cuda"), is_cpu=False)  # a FakeTensor
    facts, clock = machine_and_clock(Mock(), [fake])
    assert facts["device"] == "cpu" and clock is None
