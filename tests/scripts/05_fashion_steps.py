"""Fashion-MNIST-like training counted in steps, with accuracy on held-out data on the way."""
# bottleneck: host
# cause: periodic
# half: tune
# costs 56 % of the loop

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=200)
parser.add_argument("--eval_every", type=int, default=16)
parser.add_argument("--batch_size", type=int, default=64)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def fake_fashion(n):
    y = torch.randint(0, 10, (n,))
    x = torch.randn(n, 1, 28, 28) * 0.5 + y.view(-1, 1, 1, 1) / 10
    return TensorDataset(x, y)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = total = 0
    for x, y in loader:  # CAUSE
        correct += (model(x).argmax(1) == y).sum().item()  # CAUSE
        total += len(y)
    model.train()
    return correct / total


def forever(loader):
    while True:
        yield from loader


train_loader = DataLoader(fake_fashion(4096), batch_size=args.batch_size, shuffle=True)
val_loader = DataLoader(fake_fashion(1600), batch_size=100)
model = ConvNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for step, (x, y) in enumerate(forever(train_loader), 1):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % args.eval_every == 0:
        acc = evaluate(model, val_loader)  # CAUSE
        print(f"step {step}: loss {loss.item():.4f} val acc {acc:.3f}")
    if step == args.max_steps:
        break
