"""Train a tiny Llama from scratch with the Hugging Face Trainer."""
# bottleneck: compute
# cause: none
# half: tune
# compute is 93 % of the loop

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Counting(Dataset):
    def __init__(self, n=1200, length=64, vocab=500):
        start = torch.randint(0, vocab, (n, 1))
        stride = torch.randint(1, 9, (n, 1))
        self.ids = (start + stride * torch.arange(length)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main():
    set_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=500,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            num_train_epochs=1,
            max_steps=90,
            per_device_train_batch_size=8,
            learning_rate=5e-4,
            lr_scheduler_type="cosine",
            logging_steps=30,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=Counting())
        trainer.train()


if __name__ == "__main__":
    main()
