"""To the shape of timm's train.py (Apache-2.0), with timm's own dataset, loader and optimizer."""

import argparse

import torch
from timm import utils
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.models import create_model
from timm.optim import create_optimizer_v2


def train_one_epoch(epoch, model, loader, optimizer, loss_fn):
    model.train()
    losses_m = utils.AverageMeter()
    for batch_idx, (image, target) in enumerate(loader):
        output = model(image)
        loss = loss_fn(output, target)
        loss.backward()
        utils.dispatch_clip_grad(model.parameters(), value=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses_m.update(loss.item(), image.size(0))
        if batch_idx % 10 == 0:
            print(f"Train: {epoch} [{batch_idx}] Loss {losses_m.avg:.4f}")


@torch.inference_mode()
def validate(model, loader):
    top1_m = utils.AverageMeter()
    model.eval()
    for image, target in loader:
        output = model(image)
        top1_m.update(utils.accuracy(output, target)[0].item(), output.size(0))
    print(f"Test: Acc@1 {top1_m.avg:.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("-j", "--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--px", type=int, default=128)
    args = parser.parse_args()
    utils.random_seed(42, 0)
    model = create_model("resnet10t", pretrained=False, num_classes=8)
    data_config = resolve_data_config({"input_size": (3, args.px, args.px)}, model=model)
    shared = {
        "input_size": data_config["input_size"],
        "batch_size": args.batch_size,
        "use_prefetcher": False,  # timm's prefetcher needs CUDA
        "num_workers": args.workers,
    }
    dataset_train = create_dataset("", root="data/images", split="train", is_training=True)
    dataset_eval = create_dataset("", root="data/images", split="train", is_training=False)
    loader_train = create_loader(dataset_train, is_training=True, re_prob=0.25, **shared)
    loader_eval = create_loader(dataset_eval, is_training=False, **shared)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(args.epochs):
        train_one_epoch(epoch, model, loader_train, optimizer, loss_fn)
        validate(model, loader_eval)
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
