"""To the shape of transformers' text-classification example (Apache-2.0), on the real Trainer."""

import argparse
import random

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

VOCABULARY = {"good": 1, "bad": 2, "film": 3, "plot": 4, "the": 5}


class Reviews(Dataset):
    def __init__(self, count, seed):
        draw = random.Random(seed)
        self.texts = [" ".join(draw.choices(list(VOCABULARY), k=60)) for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        ids = [VOCABULARY[word] for word in self.texts[index].split()]
        return {"input_ids": ids, "labels": int(ids.count(1) > ids.count(2))}


def collate(features):
    rows = [torch.tensor(each["input_ids"]) for each in features]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.tensor([each["labels"] for each in features])
    return {"input_ids": padded, "attention_mask": (padded > 0).long(), "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    set_seed(42)
    config = BertConfig(
        vocab_size=8,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
    )
    model = BertForSequenceClassification(config)
    training_args = TrainingArguments(
        output_dir="out",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=10,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Reviews(args.texts, 0),
        eval_dataset=Reviews(args.texts // 4, 1),
        data_collator=collate,
    )
    trainer.train()
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
