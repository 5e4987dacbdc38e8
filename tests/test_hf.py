"""Hugging Face: a pipeline's settings as TrainingArguments, and a Trainer's run as a Run."""

import importlib.util
import math
import subprocess
import sys
import time

import pytest

import labkit as lk
from labkit.results.machine import Machine, training_arguments

CPU = Machine(device="cpu", kind="cpu", name="Test", cpu_cores=2)
HOPPER = Machine(device="cuda:0", kind="gpu", name="NVIDIA H200", compute_capability="9.0")
TURING = Machine(device="cuda:0", kind="gpu", name="Tesla T4", compute_capability="7.5")
EIGHT = (
    "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor",
    "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "tf32", "torch_compile",
)  # fmt: skip
installed = all(map(importlib.util.find_spec, ("transformers", "accelerate")))


def needs_extra(test):
    """Mark a test that trains with transformers: slow, and skipped without the extra."""
    skip = pytest.mark.skipif(not installed, reason="needs the extra labkit[hf]")
    return pytest.mark.slow(skip(test))


fast = lk.Pipeline(
    num_workers=4, prefetch_factor=3, pin_memory=True, batch_size=64, accumulation_steps=2,
    precision="bf16", compile="default",
)  # fmt: skip


def test_all_eight_settings_come_from_the_pipeline():
    settings = training_arguments(fast, HOPPER)
    assert tuple(settings)[:8] == EIGHT
    assert [settings[name] for name in EIGHT] == [4, True, 3, 64, 2, True, False, True]
    assert not settings.notes and "use_cpu" not in settings
    assert training_arguments(fast.but(precision="tf32"), HOPPER)["tf32"] is True


def test_what_a_machine_cannot_honour_is_left_out_and_explained():
    on_cpu = training_arguments(fast.but(precision="tf32"), CPU)
    assert on_cpu["tf32"] is None and on_cpu["dataloader_pin_memory"] is False
    assert on_cpu["use_cpu"] and {"tf32", "dataloader_pin_memory"} <= set(on_cpu.notes)
    assert "Tensor Cores" in repr(on_cpu) and "Tensor Cores" in on_cpu._repr_html_()
    assert training_arguments(fast, CPU)["bf16"] is True  # a CPU runs it, asked outright
    on_turing = training_arguments(fast, TURING)
    assert on_turing["bf16"] is False and "Ampere" in on_turing.notes["bf16"]
    assert training_arguments(fast.but(precision="fp16"), TURING)["fp16"] is True


@pytest.mark.slow
def test_without_the_extra_the_import_says_how_to_install_it():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import labkit as lk; print(len(lk.training_arguments(lk.Pipeline())))\n"
        "from labkit import hf"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and int(done.stdout) >= 8
    assert "pip install 'labkit[hf]'" in done.stderr


@pytest.fixture
def train(tmp_path, monkeypatch):
    """`train(*callbacks)` trains a tiny Llama on random tokens, offline; returns its Trainer."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    def trained(*callbacks, kind=Trainer, data=list):
        config = LlamaConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2,
        )  # fmt: skip
        torch.manual_seed(0)  # the same weights each time
        items = [{"input_ids": t, "labels": t} for t in torch.arange(60 * 8).view(60, 8) % 64]
        settings = {
            **lk.training_arguments(lk.Pipeline(batch_size=4, accumulation_steps=2)),
            "report_to": [], "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no",
            "num_train_epochs": 2,
        }  # fmt: skip
        arguments = TrainingArguments(output_dir=str(tmp_path), **settings)
        trainer = kind(LlamaForCausalLM(config), arguments, train_dataset=data(items))
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.result = trainer.train()
        return trainer

    return trained


class Slow(list):
    """Items that take 10 ms."""

    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)


@needs_extra
def test_a_trainer_is_recorded_as_a_run_and_a_slow_dataset_shows_as_waiting(train):
    from transformers import TrainerCallback

    from labkit import hf

    class SlowLog(TrainerCallback):
        def on_log(self, *_args, **_more):
            time.sleep(0.03)

    recorder, slow = hf.Recorder(), hf.Recorder()
    with pytest.raises(RuntimeError, match=r"trainer\.train\(\)"):
        _ = recorder.run
    trainer, run = train(SlowLog(), recorder), recorder.run
    assert run.outcome == "finished" and run.steps == trainer.state.global_step == 16
    assert run.samples == 2 * 60  # the last step of each epoch has only four
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert run.loss == pytest.approx([float(loss) for loss in logged], rel=1e-5)
    assert 0 < run.utilization <= 1 and run.throughput > 0
    assert run.diagnose().bottleneck and "watched" in repr(run)
    train(slow, data=Slow)
    assert "input" in {finding.name for finding in slow.run.diagnose().findings}
    waits, logs = slow.run.breakdown.shares, run.breakdown.shares
    assert waits["wait"] > 2 * logs["wait"] and logs["other"] > 2 * waits["other"]


@needs_extra
def test_a_training_that_fails_can_be_closed(train):
    from transformers import TrainerCallback

    from labkit import hf

    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **_more):
            if state.global_step == 5:
                raise KeyError("planted")

    recorder = hf.Recorder()
    with pytest.raises(KeyError):
        train(recorder, Fails())
    recorder.close()
    assert recorder.run.outcome == "stopped" and recorder.run.steps == 5


@needs_extra
def test_watch_works_inside_a_trainer(train):
    from transformers import Trainer

    class Watched(Trainer):
        def get_train_dataloader(self):
            return lk.watch(super().get_train_dataloader(), live=False)

    plain, watched = train().result, train(kind=Watched).result
    # The Trainer drops its iterator with an epoch's last batch: that body's end is not seen
    assert 2 * 60 - 2 * 8 <= lk.watch.last.run.samples <= 2 * 60
    assert math.isclose(watched.training_loss, plain.training_loss, rel_tol=1e-6)
