"""What a first real GPU meets, told by functions, cells and logs: nothing here needs a card."""

import ast
import json
import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pandas as pd
import pynvml
import pytest
import torch

import labkit as lk
from labkit import course
from labkit.bench import model_size, user_loop
from labkit.diagnosis import efficiency
from labkit.diagnosis.evidence import Evidence, Kernels, Xray
from labkit.watching import recorder

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def cell(notebook, name):
    """Return the source of one cell of a notebook."""
    cells = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    [source] = ["".join(each["source"]) for each in cells if each["id"] == name]
    return source


def test_one_thread_of_notebook_01_is_measured_where_a_part_of_a_card_has_no_meter():
    def utilization():
        raise pynvml.NVMLError_NotSupported

    stub = Mock()
    stub.cuda.utilization = utilization
    names = {"torch": stub, "gpu": True}
    function, _, _ = cell("01_gpu_anatomy", "anatomy-one-thread").partition("room =")
    exec(function, names)
    assert math.isnan(names["busy"](None, threads=1, seconds=0)["meter"])


def asks_torch_for_a_card(source):
    """Return the calls of a cell that hear of cards for which torch may have no kernels."""
    python = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("%"))
    calls = [node.func for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call)]
    names = [getattr(call, "attr", getattr(call, "id", "")) for call in calls]
    return [name for name in names if name in ("is_available", "current_accelerator")]


def test_no_notebook_or_challenge_takes_a_card_that_torch_sees_for_one_that_it_can_use():
    asks = {
        f"{path.stem} {each['id']}": asks_torch_for_a_card("".join(each["source"]))
        for path in NOTEBOOKS.glob("*.ipynb")
        for each in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if each["cell_type"] == "code"
    }
    asks |= {
        path.stem: asks_torch_for_a_card(path.read_text(encoding="utf-8"))
        for path in Path(course.__file__).parent.rglob("*.py")
    }
    assert {place: names for place, names in asks.items() if names} == {}
    assert asks_torch_for_a_card("%pip\nx = torch.cuda.is_available()") == ["is_available"]


@pytest.mark.parametrize("lacks", [pynvml.NVMLError_NotSupported, ModuleNotFoundError("amdsmi")])
def test_notebook_02_measures_a_card_without_a_meter_as_a_part_of_one_or_amds(lacks):
    names = {}
    exec(cell("02_sawtooth_diagnosis", "sawtooth-08"), names)
    torch = MagicMock()
    torch.cuda.utilization.side_effect = lacks
    torch.cuda.memory_reserved.return_value = 2**30
    clock = Mock(perf_counter=Mock(side_effect=[0, 4]), process_time=lambda: 0)
    names |= {"torch": torch, "time": clock}
    bench = Mock(device=SimpleNamespace(type="cuda"))
    found = names["two_meters"](bench, "hold 1 GiB")
    assert math.isnan(found["busy %"]) and found["memory GiB"] == 1

    works = ["hold 1 GiB", "one thread", "multiply matrices"]
    rows = pd.DataFrame({"work": works, "busy %": None, "memory GiB": 1.0, "TFLOP/s": 1.0})
    kit = MagicMock()
    kit.measure.return_value.rows = rows
    exec(cell("02_sawtooth_diagnosis", "sawtooth-12"), names | {"lk": kit})
    kit.check.assert_not_called()  # of numbers that nobody measured


@pytest.mark.parametrize(
    ("device", "capability", "on"),
    [
        ("cuda:0", "7.5", {"fp16"}),
        ("cuda:1", "9.0", {"bf16", "tf32"}),
        ("cuda:0", None, {"bf16"}),  # ROCm
        ("mps", None, {"bf16", "use_cpu"}),
        ("cpu", None, {"bf16", "use_cpu"}),
    ],
)
def test_notebook_08_trains_in_a_format_that_the_device_has(device, capability, on):
    kit = Mock()
    kit.machine.return_value = SimpleNamespace(device=device, compute_capability=capability)
    names = {"lk": kit, "torch": MagicMock()}
    exec(cell("08_capstone", "cap-data"), names)
    [call] = [
        node
        for node in ast.walk(ast.parse(cell("08_capstone", "cap-47")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "TrainingArguments"
    ]
    asked = {
        each.arg: eval(ast.unparse(each.value), names)
        for each in call.keywords
        if each.arg in ("bf16", "fp16", "tf32", "use_cpu")
    }
    assert {name for name, value in asked.items() if value} == on
    assert asked["tf32"] in (True, None)  # False would be set, too


class Shard(torch.nn.Parameter):
    """A part of a model that rests on the CPU, as with FSDP's offloading."""


@pytest.mark.parametrize("weights", [torch.nn.Parameter, Shard, torch.Tensor])
@pytest.mark.parametrize("known_by", ["model", "optimizer"])
def test_a_watched_loop_is_on_the_device_of_what_it_trains_and_not_of_any_tensor_on_a_card(
    weights, known_by, tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(
        user_loop, "find_device", lambda _: asked.append(1) or torch.device("cpu")
    )  # by the memory that the process holds on a card
    trained = [weights(torch.ones(2))]
    model = Mock(parameters=lambda: iter(trained)) if known_by == "model" else None
    monkeypatch.setattr(recorder.Recorder, "count", lambda self, model: setattr(self, "call", None))
    recording = recorder.Recorder(tmp_path, [1], model)
    if known_by == "model":
        recording.call = Mock(model=model, given=None)
    else:
        recording.trained_by(Mock(param_groups=[{"params": trained}]))
    recording.take([(1, 2, 3, 1, None, None)])
    assert recording.kind == "cpu" and len(asked) == (weights is not torch.nn.Parameter)
    recording.close()


def test_weights_on_a_card_tell_which_one():
    on_second = Mock(device=torch.device("cuda", 1))
    assert user_loop.device_of([on_second]) == torch.device("cuda", 1)
    assert user_loop.device_of([]) is None


@pytest.mark.parametrize("cores", [2, 4, 8, 64])
def test_without_a_simulated_delay_a_gpu_waits_for_the_default_longer_than_it_computes(cores):
    knobs = lk.Pipeline().filled(gpu=True, cores=cores)
    image_ms = 0.16 + 0.14e-3 * knobs["image_px"] ** 2  # on the core that it was measured on
    on_a_faster_core_ms = knobs["batch_size"] * image_ms / 1.5
    assert knobs["io_ms"] == 0
    assert on_a_faster_core_ms - model_size.STEP_MS > model_size.STEP_MS  # as notebook 00 checks


@pytest.mark.parametrize(
    ("device", "l2_mib", "claims"),
    [("cuda:0", 6, False), ("cuda:0", 40, True), ("cpu", 0, True), ("mps", 0, False)],
)
def test_notebook_01_claims_a_faster_cache_only_where_a_launch_does_not_hide_it(
    device, l2_mib, claims
):
    rows = pd.DataFrame({"way": "in_place", "kib": [8, 2048, 2**19], "gib_s": [1.0, 790.0, 750.0]})
    kit = MagicMock()
    kit.measure.return_value.rows = rows  # a V100's: 6 us a launch
    properties = SimpleNamespace(L2_cache_size=l2_mib * 2**20)
    names = {"lk": kit, "device": device, "gpu": device != "cpu" and device != "mps"}
    exec(cell("01_gpu_anatomy", "anatomy-50"), names | {"properties": properties})
    assert kit.check.called == claims


@pytest.mark.parametrize(
    ("model", "image_px", "memory_gib", "width"),
    [
        ("mlp", 48, 14.6, 8192),  # a T4
        ("mlp", 48, 4.75, 4096),  # the smallest part of an A100, a GTX 1650
        ("mlp", 224, 23.5, 2048),  # an RTX 4090
        ("transformer", 48, 4.75, 1024),
    ],
)
def test_a_model_is_sized_so_that_the_card_can_train_what_is_probed(
    model, image_px, memory_gib, width, monkeypatch
):
    card = SimpleNamespace(total_memory=int(memory_gib * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(model_size, "kept_depth", lambda *_: 1)
    job = model_size.plain_job(torch.device("cuda", 0), model=model, image_px=image_px)
    assert job.width == width


LAUNCHES = Xray(
    steps=5, window_us=1000, gap_us=0, tiny_us=0, tiny_ops=0, elementwise_us=0, fusible_us=0,
    heavy_us=100,
)  # fmt: skip


def test_what_products_take_of_a_gpu_is_told_by_its_kernels_and_not_by_their_launches():
    kernels = Kernels(kernel_us=1000, eligible_share=0.9)
    on_gpu = Evidence(kind="gpu", compute_share=0.9, xray=LAUNCHES, kernels=kernels)
    [(said, _)] = efficiency._by_operators(on_gpu, reached=0.2)
    assert "products and convolutions take 90% of the compute" in said
    assert efficiency._by_operators(Evidence(kind="gpu", xray=LAUNCHES), reached=0.2) == []


def test_an_amd_card_is_not_blamed_for_idle_tensor_cores():
    kernels = Kernels(kernel_us=1000, eligible_share=0.9)
    work = {"precision": "bf16"}
    unknown = Evidence(kind="gpu", kernels=kernels)
    assert efficiency._by_tensor_cores(work, unknown)
    amd = Evidence(kind="gpu", kernels=kernels, formats=())
    assert efficiency._by_tensor_cores(work, amd) == []


@pytest.mark.parametrize(
    ("device", "says"), [("mps", "not tried here"), ("cuda:0", "found: 128  counted: 25009")]
)
def test_notebook_04_finds_a_largest_batch_only_where_memory_can_be_limited(
    device, says, capsys, monkeypatch
):
    parts = pd.Series({"weights": 1.0, "gradients": 1.0, "optimizer": 2.0, "activations": 1.3})
    kit = MagicMock()
    kit.machine.return_value = SimpleNamespace(device=device)
    tried = [None, *["out of memory"] * 20]
    kit.measure.return_value.wait = lambda: Mock(rows=pd.DataFrame({"error": [tried.pop(0)]}))
    no_proc = Mock(exists=lambda: False)
    names = {
        "lk": kit,
        "cnn": parts,
        "Path": lambda _: no_proc,
        "train_within": None,
        "bet": Mock(),
    }
    exec(cell("04_batch_sizing", "batch-35"), names)
    assert says in capsys.readouterr().out
    assert kit.check.called == (device != "mps")
