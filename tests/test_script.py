"""`lk.script`: plain PyTorch that trains as the pipeline does, and the lines of a change."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import labkit as lk
from labkit.results.script import changed_lines, whole_script
from labkit.spec import Pipeline, compiler
from labkit.tuning.job import TuningJob

SHORT = {"steps": 8, "seconds": None, "xray": False, "io_ms": 0.2, "device": "cpu"}
TRAINED = {
    "default": {},
    "sleep": {"dataset": "sleep", "prep_ms": 2, "seed": 7},
    "workers": {"dataset": "array", "batch_size": 32, "io_ms": 0, "accumulation_steps": 3,
                "num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
    "bf16": {"precision": "bf16", "model": "transformer", "dataset": "array"},
    "layout": {"channels_last": True, "fused_optimizer": True, "depth": 3, "augment": 0,
               "image_px": 24},
    "stalls": {"stall_ms": 3, "stall_every": 4, "num_workers": 2, "augment": 3, "model": "mlp",
               "seed": 3},
    "text": {"dataset": "text", "context": 64, "num_workers": 1},
    "text by length": {"dataset": "text", "batching": "by_length", "stall_ms": 2, "seed": 5},
    "packed text": {"dataset": "text", "batching": "packed", "accumulation_steps": 2},
    "compiled": {"compile": "default", "dataset": "array", "model": "mlp"},
}  # fmt: skip
GPU = {
    "all": {"pin_memory": True, "non_blocking": True, "prefetch_to_device": True,
            "precision": "fp16", "accumulation_steps": 4, "compile": "reduce-overhead",
            "num_workers": 12, "prefetch_factor": 4, "persistent_workers": True,
            "stall_ms": 80.0, "dataset": "array", "device": "cuda:1"},
    "tf32": {"precision": "tf32", "dataset": "sleep", "io_ms": 1.0, "model": "transformer"},
    "plain": {"fused_optimizer": True, "non_blocking": True, "pin_memory": True},
    "text on a card": {"dataset": "text", "batching": "packed", "precision": "fp16", "io_ms": 2.0,
             "prefetch_to_device": True, "compile": "default"},
    "bare": {"augment": 0, "channels_last": True, "seconds": None, "precision": "bf16"},
}  # fmt: skip


def job(**knobs):
    """Return a job as it is resolved on a GPU, which need not be here."""
    filled = {"width": 32, "depth": 2, "prep_ms": 50.0, "io_ms": 0.0, "device": "cuda:0",
              "image_px": 48, "steps": 80}  # fmt: skip
    return Pipeline(dataset=knobs.get("dataset", "jpeg")).to_dict() | filled | knobs


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """An environment in which labkit cannot be imported, with a temporary folder of its own."""
    folder = tmp_path_factory.mktemp("apart")
    (folder / "labkit.py").write_text("raise ImportError('must not be needed')")
    return {**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, apart):
    """{name: (run, its script as a process)}: a script trains while the next pipeline runs."""
    started = {}
    for name, knobs in TRAINED.items():
        if "compile" in knobs and not compiler():
            continue
        run, folder = lk.run(Pipeline(**SHORT | knobs)), tmp_path_factory.mktemp("script")
        file = lk.script(run).save(folder / "train.py")
        command, pipe = [sys.executable, "-W", "error::UserWarning", file], subprocess.PIPE
        how = {"cwd": folder, "env": apart, "stdout": pipe, "stderr": pipe, "text": True}
        started[name] = run, subprocess.Popen(command, **how)
    return started


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_script_trains_the_same_losses_to_the_bit(name, trained):
    if name not in trained:
        pytest.skip("needs a C++ compiler")
    run, process = trained[name]
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    losses, rate = said.splitlines()
    theirs = np.array(losses.split()[1:], np.float32)
    assert theirs.tolist() == np.array(run.loss, np.float32).tolist()
    assert len(theirs) == 8 and rate.endswith("/s after the warm-up")


@pytest.mark.slow
def test_a_pipelines_script_is_that_of_its_run_here():
    pipeline = Pipeline(**SHORT, pin_memory=True)
    script = lk.script(pipeline)
    assert script == lk.script(lk.run(pipeline))
    assert "Left out: pin_memory (there is no CUDA device" in script.replace("\n", " ")
    assert "pin_memory=True," not in script.partition("import")[2]
    with pytest.raises(ValueError, match="width=None is chosen by timing"):
        lk.script(Pipeline(device="cuda"))
    elsewhere = lk.script(Pipeline(device="cuda", width=64, depth=4, pin_memory=True))
    assert "pin_memory=True" in elsewhere.partition("DataLoader(")[2]
    assert 'torch.device("cuda")' in elsewhere


def test_scripts_are_formatted_and_import_what_they_use(tmp_path):
    for name, knobs in (TRAINED | GPU).items():
        (tmp_path / f"{name}.py").write_text(whole_script(job(**knobs), 2, "A script."))
    for how in (["format", "--check"], ["check", "--select", "E,F,I,B,UP,SIM"]):
        ruff = [sys.executable, "-m", "ruff", *how, "--isolated", "--line-length", "100", tmp_path]
        done = subprocess.run(ruff, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for name in TRAINED | GPU:
        script = (tmp_path / f"{name}.py").read_text()
        assert "labkit" not in script
        in_order = "ordered(" in script  # of text, by length
        assert ("shuffle=True" in script) != in_order and "sampler=enumerate" not in script


def test_the_lines_of_a_change_are_whole_statements():
    assert changed_lines({}, {"num_workers": 6, "seed": 3}) == (
        "SEED = 3\nloader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=6)\n"
    )
    assert changed_lines({}, {"precision": "bf16"}) == (
        "with torch.autocast(device.type, dtype=torch.bfloat16):\n"
        "    loss = nn.functional.cross_entropy(model(images), labels)\n"
    )
    assert changed_lines({}, {"compile": "default"}) == "model = torch.compile(model)\n"
    loop = changed_lines({}, {"accumulation_steps": 4, "precision": "fp16"})
    assert "scaler.scale(loss / 4).backward()\nif step % 4 == 0:\n    scaler.step(" in loop
    for name, value in {"prefetch_to_device": True, "channels_last": True, "seed": 3}.items():
        assert 1 <= changed_lines({}, {name: value}).count("\n") <= 8
    p = Pipeline(num_workers=2)
    lines = lk.script(p.but(dataset="array", num_workers=4), before=p)
    assert lines.startswith("dataset = Images(decoded(") and "num_workers=4" in lines
    assert lk.script(p, before=p) == "# nothing changed\n"
    assert "not in the script" in lk.script(p.but(xray=False), before=p)


def test_a_script_is_text_that_can_be_saved_and_shown(tmp_path):
    script = lk.script(Pipeline(seed=3, compile="default"), before=Pipeline())
    assert script.save(tmp_path / "lines.py").read_text() == script.text == str(script)
    assert repr(script) + "\n" == script and "<pre" in script._repr_html_()
    for bad in (3, "train.py", lk.recorded()):
        with pytest.raises(ValueError, match="give a Pipeline, or the Run of one"):
            lk.script(bad)
    for knob in ("dataset", "model"):
        with pytest.raises(ValueError, match=f"{knob}='new' cannot be written as a script yet"):
            whole_script(job() | {knob: "new"}, 1)


def test_a_watched_run_is_tuned_by_its_loader_and_wrong_names_are_told_the_right_one():
    data = torch.utils.data.TensorDataset(torch.zeros(64, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    with lk.watch(loader, live=False) as watched:
        for _ in range(3):
            list(watched)
    job = TuningJob(watched.run, seconds=1, max_workers=16)
    assert job.tuning.name == "TensorDataset" and job.tuning.start.batch_size == 8
    assert job.tuning.notes[0].startswith("Up to 16 workers were tried (max_workers); PyTorch w")
    assert job.fed >= watched.run.throughput and job.tuning.snippet in job.tuning.script()
    watched.run.loader = None  # as of a record
    with pytest.raises(ValueError, match=r"give the loader itself, as in lk.tune\(loader, step="):
        lk.tune(watched.run)
    with pytest.raises(ValueError, match="did you mean 'batch_size'"):
        lk.tune(data, batchsize=8)
    with pytest.raises(ValueError, match="Unknown argument of lk.watch: sped=2"):
        lk.watch(loader, sped=2)
    with pytest.raises(TypeError, match=r"in lk.watch\(DataLoader\(dataset, batch_size=32\)\): "):
        lk.watch(data)
