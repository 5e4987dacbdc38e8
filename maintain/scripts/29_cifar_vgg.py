"""A VGG-style network on CIFAR-like images held in memory."""
# bottleneck: compute
# cause: none
# half: tune
# compute is 95 % of the loop

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def block(cin, cout):
    return [
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]


net = nn.Sequential(
    *block(3, 16), *block(16, 32), *block(32, 64), nn.Flatten(), nn.Linear(64 * 16, 10)
)
labels = torch.randint(0, 10, (32 * 45,))
images = torch.randn(len(labels), 3, 32, 32) + labels.view(-1, 1, 1, 1) / 4
trainloader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)

criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
scheduler = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[6], gamma=0.1)

for epoch in range(8):
    running_loss = 0.0
    for i, (inputs, targets) in enumerate(trainloader):
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if i % 15 == 14:
            print(f"[{epoch + 1}, {i + 1:5d}] loss: {running_loss / 15:.3f}")
            running_loss = 0.0
    scheduler.step()
print("Finished Training")
