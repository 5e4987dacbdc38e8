"""To the shape of pytorch/examples imagenet/main.py (BSD-3-Clause): with --dummy, or with files."""

import argparse
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


class AverageMeter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def accuracy(output, target):
    with torch.no_grad():
        return 100.0 * (output.argmax(1) == target).float().mean().item()


def train(train_loader, model, criterion, optimizer, epoch):
    data_time = AverageMeter()
    losses = AverageMeter()
    top1 = AverageMeter()
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.time()
        if i % 10 == 0:
            print(f"Epoch: [{epoch}][{i}] Data {data_time.avg:.3f} Loss {losses.avg:.3f}")


@torch.no_grad()
def validate(val_loader, model):
    top1 = AverageMeter()
    model.eval()
    for images, target in val_loader:
        top1.update(accuracy(model(images), target), images.size(0))
    print(f" * Acc@1 {top1.avg:.3f}")


def main():
    parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
    parser.add_argument("-j", "--workers", default=4, type=int)
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("-b", "--batch-size", default=256, type=int)
    parser.add_argument("--images", default=1_281_167, type=int)  # not in the original
    parser.add_argument("--px", default=224, type=int)  # not in the original
    parser.add_argument("--dummy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    if args.dummy:
        shape = (3, args.px, args.px)
        train_dataset = datasets.FakeData(args.images, shape, 1000, transforms.ToTensor())
        val_dataset = datasets.FakeData(args.images // 25, shape, 1000, transforms.ToTensor())
    else:
        crop = transforms.Compose([transforms.RandomResizedCrop(args.px), transforms.ToTensor()])
        train_dataset = datasets.ImageFolder("data/images", crop)
        val_dataset = train_dataset
    model = models.resnet18()
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    loaders = {"batch_size": args.batch_size, "num_workers": args.workers}
    train_loader = DataLoader(train_dataset, shuffle=True, **loaders)
    val_loader = DataLoader(val_dataset, shuffle=False, **loaders)
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch)
        validate(val_loader, model)
        torch.save({"epoch": epoch, "optimizer": optimizer.state_dict()}, "checkpoint.pth.tar")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
