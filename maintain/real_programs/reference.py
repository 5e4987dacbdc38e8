"""To the shape of torchvision's references/classification/train.py (BSD-3-Clause): JPEG folders.

Its MetricLogger wraps the loader in a generator; the mixup runs in the collate function.
"""

import argparse

import torch
import torchvision
from torch import nn
from torch.utils.data.dataloader import default_collate
from torchvision.transforms import v2


class MetricLogger:
    def __init__(self):
        self.meters = {}

    def update(self, **values):
        self.meters.update(values)

    def log_every(self, iterable, print_freq, header):
        for i, obj in enumerate(iterable):
            yield obj
            if i % print_freq == 0:
                print(header, i, self.meters)


def train_one_epoch(model, criterion, optimizer, data_loader, epoch):
    model.train()
    metric_logger = MetricLogger()
    for image, target in metric_logger.log_every(data_loader, 10, f"Epoch: [{epoch}]"):
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric_logger.update(loss=loss.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", default=32, type=int)
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("--crop", default=224, type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    augmented = [v2.RandomResizedCrop(args.crop, antialias=True), v2.TrivialAugmentWide()]
    to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    dataset = torchvision.datasets.ImageFolder("data/images", v2.Compose([*augmented, *to_tensor]))
    num_classes = len(dataset.classes)
    mixup = v2.MixUp(alpha=0.2, num_classes=num_classes)
    data_loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=4,
        pin_memory=True,
        collate_fn=lambda batch: mixup(*default_collate(batch)),
    )
    model = torchvision.models.mobilenet_v3_small(num_classes=num_classes)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        train_one_epoch(model, criterion, optimizer, data_loader, epoch)
        torch.save({"model": model.state_dict(), "epoch": epoch}, "checkpoint.pth")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
