"""Intent classification for a chat bot, with accelerate; shows precision and recall as it goes."""
# bottleneck: host
# cause: python
# costs 42 % of the loop

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

INTENTS = [f"intent_{i:03d}" for i in range(150)]
DIM = 300


def report(truth, predicted):
    lines = []
    for k, name in enumerate(INTENTS):
        tp = sum(1 for t, p in zip(truth, predicted, strict=True) if t == k and p == k)  # CAUSE
        fp = sum(1 for t, p in zip(truth, predicted, strict=True) if t != k and p == k)  # CAUSE
        fn = sum(1 for t, p in zip(truth, predicted, strict=True) if t == k and p != k)  # CAUSE
        tn = sum(1 for t, p in zip(truth, predicted, strict=True) if t != k and p != k)  # CAUSE
        accuracy = (tp + tn) / len(truth)
        precision = tp / (tp + fp) if tp + fp else 0.0
        recall = tp / (tp + fn) if tp + fn else 0.0
        lines.append(f"{name:<12} {precision:6.3f} {recall:6.3f} {accuracy:6.3f}")
    return "\n".join(lines)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    centers = torch.randn(len(INTENTS), DIM)
    labels = torch.randint(0, len(INTENTS), (256 * 40,))
    vectors = centers[labels] + 2 * torch.randn(len(labels), DIM)
    loader = DataLoader(TensorDataset(vectors, labels), batch_size=256, shuffle=True)
    hidden = [nn.Linear(DIM, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(256, len(INTENTS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(10):
        for x, y in loader:
            logits = model(x)
            loss = loss_fn(logits, y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            table = report(y.tolist(), logits.argmax(1).tolist())  # CAUSE
        accelerator.print(f"epoch {epoch} loss {loss.item():.3f}")
    accelerator.print(table)


if __name__ == "__main__":
    main()
