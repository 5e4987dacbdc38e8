"""To the shape of pytorch/examples imagenet/main.py --dummy (BSD-3-Clause): FakeData, 4 workers."""

import argparse
import time

import torch
import torchvision.models as models
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torchvision import datasets, transforms


class AverageMeter:
    def __init__(self):
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [
            correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0))
            for k in topk
        ]


def train(train_loader, model, criterion, optimizer, epoch, args):
    batch_time, data_time, losses, top1, top5 = (AverageMeter() for _ in range(5))
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0], images.size(0))
        top5.update(acc5[0], images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            print(f"Epoch: [{epoch}][{i}/{len(train_loader)}] Time {batch_time.avg:.3f} ")


def validate(val_loader, model, criterion):
    top1 = AverageMeter()
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            output = model(images)
            criterion(output, target)
            top1.update(accuracy(output, target)[0][0], images.size(0))
    return top1.avg


def main():
    parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
    parser.add_argument("-a", "--arch", default="resnet18")
    parser.add_argument("-j", "--workers", default=4, type=int)
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("-b", "--batch-size", default=256, type=int)
    parser.add_argument("--images", default=1_281_167, type=int)  # not in the original
    parser.add_argument("--px", default=224, type=int)  # not in the original
    parser.add_argument("--print-freq", default=10, type=int)
    parser.add_argument("--seed", default=None, type=int)
    args = parser.parse_args()
    if args.seed is not None:
        torch.manual_seed(args.seed)
    print("=> Dummy data is used!")
    shape = (3, args.px, args.px)
    train_dataset = datasets.FakeData(args.images, shape, 1000, transforms.ToTensor())
    val_dataset = datasets.FakeData(args.images // 25, shape, 1000, transforms.ToTensor())
    model = models.__dict__[args.arch]()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    val_loader = torch.utils.data.DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False, num_workers=args.workers
    )
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch, args)
        validate(val_loader, model, criterion)
        scheduler.step()
        torch.save({"epoch": epoch, "optimizer": optimizer.state_dict()}, "checkpoint.pth.tar")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
