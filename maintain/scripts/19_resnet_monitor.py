"""A little residual network on 32x32 images that notes the load with every step."""
# bottleneck: host
# cause: waiting
# costs 34 % of the loop

import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.conv2(F.relu(self.bn(self.conv1(x)))))


class SmallResNet(nn.Module):
    def __init__(self, width=20, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def system_load():
    code = "import os; print(os.getloadavg()[0])"
    out = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True)  # CAUSE
    return float(out.stdout)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    y = torch.randint(0, 10, (64 * 50,))
    x = torch.randn(len(y), 3, 32, 32) + y.view(-1, 1, 1, 1) / 5
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    model = SmallResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            load = system_load()  # CAUSE
        print(f"epoch {epoch}: loss {loss.item():.3f} load {load:.1f}")


if __name__ == "__main__":
    main()
