"""Pretrain a tiny BERT with the Hugging Face Trainer and a whole-word masking collator."""
# bottleneck: input
# cause: collate
# costs 30 % of the loop

import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

VOCAB_SIZE = 1000
PAD, MASK = 0, 1
LENGTH = 64


class Corpus(Dataset):
    def __init__(self, n, seed=0):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            start = rng.randrange(2, VOCAB_SIZE)
            size = rng.randint(40, LENGTH)
            ids = [2 + (start + 7 * k) % (VOCAB_SIZE - 2) for k in range(size)]
            self.rows.append({"input_ids": ids})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def mask_words(features):
    n = len(features)
    input_ids = torch.full((n, LENGTH), PAD)
    attention_mask = torch.zeros(n, LENGTH, dtype=torch.long)
    labels = torch.full((n, LENGTH), -100)
    for i, feature in enumerate(features):  # CAUSE
        for j, token in enumerate(feature["input_ids"]):  # CAUSE
            input_ids[i, j] = token  # CAUSE
            attention_mask[i, j] = 1  # CAUSE
            if torch.rand(1).item() < 0.15:  # CAUSE
                labels[i, j] = token  # CAUSE
                input_ids[i, j] = MASK  # CAUSE
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=LENGTH,
    )
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            max_steps=160,
            per_device_train_batch_size=16,
            logging_steps=40,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=BertForMaskedLM(config),
            args=arguments,
            train_dataset=Corpus(2000),
            data_collator=mask_words,
        )
        trainer.train()  # CAUSE
        torch.save(trainer.model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
