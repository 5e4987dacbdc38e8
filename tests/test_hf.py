"""A framework's trainer as a Run: Hugging Face's by its callback, Lightning's by its loader."""

import importlib.util
import sys
import time

import pytest
import torch

import labkit as lk

pytestmark = pytest.mark.slow
installed = all(map(importlib.util.find_spec, ("transformers", "accelerate")))
needs_hf = pytest.mark.skipif(not installed, reason="needs the extra gpu-labkit[hf]")


def test_without_the_extra_the_import_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "labkit.hf", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'gpu-labkit\[hf\]'"):
        importlib.import_module("labkit.hf")


def host_of(run):
    """Return what is found of the loop's body: beside other programs the verdict is withheld."""
    return next(found for found in run.diagnose().findings if found.name == "host")


class Slow(list):
    """Items that take 10 ms."""

    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)


def padded(items):
    rows = [torch.tensor(item["input_ids"]) for item in items]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "labels": ids, "attention_mask": (ids > 0).long()}


@needs_hf
def test_a_trainer_is_recorded_as_a_run_in_which_a_slow_dataset_and_callback_show(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from labkit import hf

    class SlowLog(TrainerCallback):
        def on_log(self, *_args, **_more):
            time.sleep(0.06)

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    arguments = TrainingArguments(
        str(tmp_path),
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    recorder = hf.Recorder()
    with pytest.raises(RuntimeError, match=r"trainer\.train\(\)"):
        _ = recorder.run
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        data_collator=padded,
        train_dataset=Slow({"input_ids": [2] * length} for length in [8, 4] * 30),
        callbacks=[SlowLog(), recorder],
    )
    trainer.train()
    run = recorder.run
    assert run.outcome == "finished" and run.steps == 2 * 15
    assert run.loop["trainer"]  # so that advice names its arguments, not a DataLoader's
    assert run.samples == 2 * 60
    assert 0 < run.utilization <= 1 and run.throughput > 0
    assert run.wait_ms > 4 * 10 * 0.9  # the samples of a batch
    assert not trainer.model._forward_pre_hooks  # nothing of ours is left behind
    seen = {line.function.rpartition(".")[2] for line in run.lines.lines}
    assert {"on_log", "__getitem__"} <= seen  # the sleeps in the user's own code


@pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="needs gpu-labkit[lightning]")
def test_a_lightning_trainer_takes_a_watched_loader(tmp_path):
    import lightning

    class Tiny(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(8, 1)

        def training_step(self, batch, number):
            time.sleep(0.05)
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    def fit(samples):
        off = "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"
        quiet = dict.fromkeys(off, False) | {"accelerator": "cpu", "default_root_dir": tmp_path}
        trainer = lightning.Trainer(max_epochs=2, **quiet)
        watched = lk.watch(torch.utils.data.DataLoader(samples, 4), live=False)
        try:
            trainer.fit(Tiny(), watched)
        except RuntimeError as error:
            watched.close(error)
        return watched.run

    run = fit(torch.randn(80, 8))
    assert (run.steps, run.samples) == (38, 152)  # Lightning asks for no batch behind the last
    found = host_of(run)
    assert found.cause == "waiting" and found.lines[0].function.endswith("Tiny.training_step")
    failed = fit(torch.randn(80, 3))
    assert failed.outcome == "failed" and "shapes" in failed.error
