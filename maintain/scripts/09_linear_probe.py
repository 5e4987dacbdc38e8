"""Linear probe: a frozen backbone and a new classification head, twenty classes."""
# bottleneck: host
# cause: drift
# costs 51 % of the loop

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

N_CLASSES, BATCH = 20, 32

backbone = nn.Sequential(
    nn.Conv2d(3, 32, 5, stride=2, padding=2),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(6),
    nn.Flatten(),
)
for p in backbone.parameters():
    p.requires_grad = False
backbone.eval()

labels = torch.randint(0, N_CLASSES, (BATCH * 50,))
images = torch.randn(len(labels), 3, 48, 48) + labels.view(-1, 1, 1, 1) / 10
batches = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(labels), BATCH)]

model = nn.Linear(64 * 36, N_CLASSES)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
criterion = nn.CrossEntropyLoss()

total_loss = 0
seen = correct = 0
for epoch in range(5):
    for inputs, targets in batches:
        optimizer.zero_grad()
        outputs = model(backbone(inputs))
        loss = criterion(outputs, targets)
        total_loss += loss  # CAUSE
        total_loss.backward(retain_graph=True)  # CAUSE
        optimizer.step()
        seen += len(targets)
        correct += (outputs.argmax(1) == targets).sum().item()
    print(f"epoch {epoch}: loss {total_loss.item() / seen:.4f} acc {correct / seen:.3f}")
