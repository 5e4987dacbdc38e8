"""Our Triton kernel and its package: checked where the libraries are, else skipped in words."""

import importlib.util
import json

import pytest

from labkit.experiments import Experiment, own_kernel
from labkit.results.launch import launch

TRITON, KERNELS = (importlib.util.find_spec(name) for name in ("triton", "kernels"))


@pytest.fixture(scope="module")
def own():
    done = launch(Experiment("own_kernel", {"hub": "labkit/no-such-kernel"})).wait()
    assert done.outcome == "finished", done.error
    return done


def test_each_part_is_checked_or_says_how_to_install_what_it_lacks(own):
    for what in ("triton kernel", "local package"):
        points = own.where(what)
        assert bool(points) != (what in own.skipped)
        assert all(point.values["largest difference"] < 1e-6 for point in points)
        assert points or "labkit[kernels]" in own.skipped[what]


@pytest.mark.skipif(not TRITON, reason="triton is not installed")
def test_the_kernel_is_interpreted_where_there_is_no_gpu_and_then_has_no_speed(own):
    points = own.where("triton kernel")
    assert {point.case["n"] for point in points} >= {1, 1024}
    interpreted = points[0].values["interpreted"]
    assert interpreted == (own.machine.kind == "cpu")
    assert bool(own.where("time")) != interpreted


@pytest.mark.skipif(not (TRITON and KERNELS), reason="kernels or triton is not installed")
def test_the_package_is_loaded_by_its_name(own):
    values = own.where("local package")[0].values
    assert values["name"] == "labkit/add3"
    assert any(name.endswith("metadata.json") for name in values["files"])


def test_the_hub_is_not_there_or_has_no_such_kernel_and_the_run_says_which(own):
    assert own.skipped.get("hub kernel") or not own.one("hub kernel").values["loaded"]


def test_a_package_is_a_copy_of_the_kernel_and_its_metadata(tmp_path):
    folder = own_kernel.write_package(tmp_path, "cpu") / "build" / "torch-cpu"
    assert "def add3" in (folder / "__init__.py").read_text()
    facts = json.loads((folder / "metadata.json").read_text())
    assert facts["backend"] == {"type": "cpu"} and facts["license"] == "MIT"
