"""Hugging Face on text: what the Trainer pads, and `generate()`."""

import importlib.util

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("transformers", "accelerate"))),
        reason="needs the extra labkit[hf]",
    ),
]


@pytest.fixture
def decoder(monkeypatch):
    """Return what makes a tiny Llama from a config: nothing is downloaded."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def make():
        torch.manual_seed(0)  # the same weights each time
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=64,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=128,
                eos_token_id=None,
            )
        )

    return make


@pytest.fixture
def collate(monkeypatch):
    """Return transformers' own collator, with a tokenizer made here."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from tokenizers import Tokenizer, models
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    return DataCollatorForLanguageModeling(tokenizer, mlm=False)


def test_padding_is_counted_and_the_rate_is_of_real_tokens(tmp_path, decoder, collate):
    import torch
    from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

    from labkit import hf

    lengths = torch.randint(8, 100, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    items = [{"input_ids": [2 + i % 60 for i in range(n)]} for n in lengths]

    def train(collator):
        arguments = TrainingArguments(
            str(tmp_path),
            report_to=[],
            disable_tqdm=True,
            logging_steps=1,
            save_strategy="no",
            per_device_train_batch_size=8,
            num_train_epochs=1,
            use_cpu=True,
        )
        recorder = hf.Recorder()
        trainer = Trainer(
            decoder(), arguments, train_dataset=items, data_collator=collator, callbacks=[recorder]
        )
        trainer.train()
        return recorder.run, trainer

    plain, trainer = train(collate)
    packed, _ = train(DataCollatorWithFlattening())
    assert plain.outcome == packed.outcome == "finished"
    batches = [collate(items[at : at + 8]) for at in range(0, 400, 8)]
    real = sum(int(batch["attention_mask"].sum()) for batch in batches)
    share = 1 - real / sum(batch["attention_mask"].numel() for batch in batches)
    assert plain.padding == pytest.approx(share, abs=0.03)  # in another order
    assert packed.padding == 0 and packed.real_tokens_per_s == packed.tokens_per_s > 0
    for run in (plain, packed):
        assert run.tokens[:, 1].sum() == real  # the last of which no step follows
        assert run.real_tokens_per_s == pytest.approx(run.tokens_per_s * (1 - run.padding))
    assert plain.samples == 400 and plain.loss[0] > plain.loss[-1]
    found = {f.cause: f for f in plain.diagnose().findings}
    assert 0.1 < found["padding"].lost_share <= plain.padding
    (remedy,) = found["padding"].remedies  # in words: batches are the Trainer's
    assert remedy.key == "pad_less" and not remedy.code
    assert not trainer.model._forward_pre_hooks  # nothing of ours is left behind


def test_generate_is_timed_token_by_token_and_held_against_the_law(decoder, monkeypatch):
    import torch

    from labkit import hf
    from labkit.bench import peaks

    model = decoder().eval()
    prompt = torch.randint(2, 64, (3, 10))
    monkeypatch.setattr(peaks, "kept", lambda _device: None)
    found = hf.generation(model, prompt, new_tokens=12)
    assert found.batch == 3 and found.p99_ms is None and found.law_ms is None
    assert found.tokens_per_s == pytest.approx(3e3 / found.token_ms, rel=0.9)
    assert found.weights_bytes == sum(p.numel() * 4 for p in model.parameters())
    monkeypatch.setattr(peaks, "kept", lambda _device: {"bandwidth": 1e9})
    found = hf.generation(model, prompt, new_tokens=5)
    assert found.law_ms == pytest.approx(found.weights_bytes / 1e6)
    assert "as long as reading weights" in str(found.table())
