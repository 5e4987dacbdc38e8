"""`lk.script`: plain PyTorch that trains as the pipeline does, and the lines of a change."""

import os
import re
import subprocess
import sys

import pytest

import labkit as lk
from labkit import Pipeline
from labkit.results.script import changed_lines, whole_script
from labkit.spec import automatic

SHORT = {"steps": 6, "seconds": None, "xray": False, "device": "cpu", "width": 32, "depth": 2}
SAME = {  # scripts whose losses are those of their run
    "sleep": {"dataset": "sleep", "prep_ms": 1, "model": "mlp"},
    "array": {
        "dataset": "array",
        "batch_size": 32,
        "accumulation_steps": 3,
        "num_workers": 2,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "model": "transformer",
        "precision": "bf16",
    },
    "layout": {
        "channels_last": True,
        "fused_optimizer": True,
        "depth": 3,
        "augment": 0,
        "image_px": 24,
        "io_ms": 0.2,
        "stall_ms": 3,
        "stall_every": 4,
        "seed": 3,
        "pin_memory": True,
    },
}
ON_GPU = {
    "all": {
        "pin_memory": True,
        "non_blocking": True,
        "prefetch_to_device": True,
        "precision": "fp16",
        "accumulation_steps": 4,
        "compile": "reduce-overhead",
        "num_workers": 12,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "stall_ms": 80.0,
        "dataset": "array",
        "device": "cuda:1",
    },
    "compiled": {"compile": "default", "seconds": 4.0, "precision": "tf32"},
}
IN_TURN = "import runpy, sys; [runpy.run_path(file, run_name='__main__') for file in sys.argv[1:]]"


def run_apart(folder, files):
    """Run scripts where labkit cannot be imported, in one process; return the lines of each."""
    (folder / "labkit.py").write_text("raise ImportError('must not be needed')")
    env = {**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder)}
    command = [sys.executable, "-W", "error::UserWarning", "-c", IN_TURN, *files]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return zip(lines[::2], lines[1::2], strict=True)


@pytest.mark.slow
def test_a_script_trains_to_the_losses_of_its_run(tmp_path):
    pipelines = [Pipeline(**SHORT | knobs) for knobs in SAME.values()]
    runs = list(map(lk.run, pipelines))
    scripts = list(map(lk.script, runs))
    assert lk.script(pipelines[0]) == scripts[0]  # as it is resolved here
    files = [script.save(tmp_path / f"{n}.py") for n, script in enumerate(scripts)]
    for run, (losses, rate) in zip(runs, run_apart(tmp_path, files), strict=True):
        first, last = map(float, re.findall(r"\d\.\d{4}", losses))
        assert [first, last] == pytest.approx([run.loss[0], run.loss[-1]], rel=2e-3)
        assert losses.endswith(f"at step {run.steps}")
        assert re.fullmatch(r"[\d,]+ samples/s after the warm-up", rate)


def test_a_pipelines_script_has_what_its_device_can_do():
    script = lk.script(Pipeline(**SHORT, pin_memory=True))
    assert "Left out: pin_memory (there is no CUDA device" in script.replace("\n", " ")
    assert "pin_memory=True," not in script.partition("import")[2]
    with pytest.raises(ValueError, match="width=None is chosen for the device"):
        lk.script(Pipeline(device="cuda"))
    elsewhere = lk.script(Pipeline(device="cuda", width=64, depth=4, pin_memory=True))
    assert "pin_memory=True" in elsewhere.partition("DataLoader(")[2]
    assert 'torch.device("cuda")' in elsewhere


def test_scripts_are_formatted_and_import_what_they_use(tmp_path):
    for name, knobs in (SAME | ON_GPU).items():
        asked = Pipeline(dataset=knobs.get("dataset", "jpeg")).to_dict()
        text = whole_script(
            asked | automatic(asked) | SHORT | {"device": "cuda:0"} | knobs, 2, "A script."
        )
        (tmp_path / f"{name}.py").write_text(text)
        assert "labkit" not in text
    for how in (["format", "--check"], ["check", "--select", "E,F,I,B,UP,SIM"]):
        ruff = [sys.executable, "-m", "ruff", *how, "--isolated", "--line-length", "100", tmp_path]
        done = subprocess.run(ruff, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_change_is_shown_as_a_diff():
    plain = Pipeline(num_workers=2)
    lines = lk.script(plain.but(num_workers=4, precision="bf16"), before=plain).splitlines()
    assert lines[:2] == ["--- before/train.py", "+++ after/train.py"]
    workers, autocast, _ = [line[1:].strip() for line in lines[2:] if line.startswith("+")]
    assert workers.endswith("num_workers=4)") and autocast.startswith("with torch.autocast(")
    assert lk.script(plain, before=plain) == "# nothing changed\n"
    slow, fast = map(lk.recorded, ("workers-0", "workers-4"))  # with knobs that were left open
    lines = lk.script(fast, before=slow)
    assert f"width={slow.pipeline.width}" in lines and "..." not in lines


@pytest.mark.parametrize("knobs", [{"dataset": "array"}, {"stall_ms": 3.0}])
def test_a_loader_to_paste_names_nothing_of_the_script_but_its_dataset(knobs):
    slow = Pipeline(**knobs).to_dict()
    changed = changed_lines(slow, slow | {"num_workers": 4})
    exec(changed, names := {"DataLoader": lambda *given, **named: named, "dataset": []})
    assert names["loader"] == {"batch_size": 16, "shuffle": True, "num_workers": 4}


def test_a_script_is_made_of_pipelines_only():
    for bad in (3, lk.recorded()):
        with pytest.raises(ValueError, match="give a Pipeline, or the Run of one"):
            lk.script(bad)
