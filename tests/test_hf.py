"""A framework's trainer as a Run: Hugging Face's, and Lightning's."""

import importlib.util
import sys
import time

import pytest
import torch

pytestmark = pytest.mark.slow
installed = all(map(importlib.util.find_spec, ("transformers", "accelerate")))
needs_hf = pytest.mark.skipif(not installed, reason="needs the extra labkit[hf]")


def test_without_the_extra_the_import_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "labkit.hf", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'labkit\[hf\]'"):
        importlib.import_module("labkit.hf")


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return what trains a tiny Llama on some items, and its Run: nothing is downloaded."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from labkit import hf

    def train(items, *callbacks, collator=None, **settings):
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
            **settings,
        )
        recorder = hf.Recorder()
        trainer = Trainer(
            LlamaForCausalLM(config),
            arguments,
            data_collator=collator,
            train_dataset=items,
            callbacks=[*callbacks, recorder],
        )
        trainer.train()
        return trainer, recorder.run

    return train


def host_of(run):
    """Return what is found of the loop's body: beside other programs the verdict is withheld."""
    return next(found for found in run.diagnose().findings if found.name == "host")


class Slow(list):
    """Items that take 10 ms."""

    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)


@needs_hf
def test_a_trainer_is_recorded_as_a_run_in_which_a_slow_dataset_and_a_slow_callback_show(train):
    from transformers import TrainerCallback

    from labkit import hf

    class SlowLog(TrainerCallback):
        def on_log(self, *_args, **_more):
            time.sleep(0.06)

    with pytest.raises(RuntimeError, match=r"trainer\.train\(\)"):
        _ = hf.Recorder().run
    trainer, run = train(
        Slow({"input_ids": t, "labels": t} for t in torch.arange(60 * 8).view(60, 8) % 64),
        SlowLog(),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    assert run.outcome == "finished" and run.steps == trainer.state.global_step == 16
    assert run.trainer  # so that advice names its arguments, not a DataLoader's
    assert run.loop_code["training"] == "arguments"
    assert run.samples == 2 * 60  # the last step of each epoch has only four
    logged = [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]
    assert run.loss == pytest.approx(logged, rel=1e-5)
    assert 0 < run.utilization <= 1 and run.throughput > 0
    assert run.event("work")["samples"] == 4
    assert run.wait_ms > 8 * 10 * 0.9  # the samples of a step
    found = host_of(run)  # the sleep in a callback of the user's
    assert found.cause == "waiting" and found.lines[0].function.endswith("SlowLog.on_log")


@needs_hf
def test_what_a_trainer_pads_is_counted(train):
    def padded(items):
        rows = [torch.tensor(item["input_ids"]) for item in items]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return {"input_ids": ids, "labels": ids, "attention_mask": (ids > 0).long()}

    items = [{"input_ids": [2] * length} for length in [8, 4] * 80]
    trainer, run = train(items, collator=padded, num_train_epochs=1)
    assert run.padding == pytest.approx(0.25, abs=0.05)  # in another order
    found = {finding.cause: finding for finding in run.diagnose().findings}
    assert 0.1 < found["padding"].lost_share <= run.padding
    (remedy,) = found["padding"].remedies  # in words: batches are the Trainer's
    assert remedy.key == "pad_less" and not remedy.code
    assert not trainer.model._forward_pre_hooks  # nothing of ours is left behind


@pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="needs labkit[lightning]")
def test_a_lightning_trainer_is_recorded_as_a_run_with_its_lines(tmp_path):
    import lightning

    from labkit.lightning import Recorder

    class Tiny(lightning.LightningModule):
        def __init__(self, fails_at=None):
            super().__init__()
            self.net = torch.nn.Linear(8, 1)
            self.fails_at = fails_at

        def training_step(self, batch, number):
            time.sleep(0.02)
            if number == self.fails_at:
                raise ArithmeticError("no more")
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    def fit(module):
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        quiet = dict.fromkeys(off, False) | {"accelerator": "cpu", "default_root_dir": tmp_path}
        trainer = lightning.Trainer(max_epochs=2, callbacks=[recorder], **quiet)
        trainer.fit(module, torch.utils.data.DataLoader(torch.randn(120, 8), 4))

    recorder = Recorder()
    fit(Tiny())
    run = recorder.run
    assert (run.outcome, run.steps, run.samples) == ("finished", 60, 240)
    found = host_of(run)
    assert found.cause == "waiting" and found.lines[0].function.endswith("Tiny.training_step")
    with pytest.raises(ArithmeticError):
        fit(Tiny(fails_at=3))
    assert recorder.run.outcome == "failed" and "no more" in recorder.run.error
