"""Food photos, ten dishes: decode, crop, flip, jitter and normalise, then a CNN."""
# bottleneck: input
# cause: waiting for data
# half: tune
# costs 47 % of the loop

import io
import random

import numpy as np
import torch
import torch.nn as nn
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def encode_photos(n):
    rng = np.random.default_rng(0)
    photos = []
    for _ in range(n):
        pixels = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize((160, 160), Image.BICUBIC).save(buffer, "JPEG", quality=85)
        photos.append(buffer.getvalue())
    return photos


class Food(Dataset):
    def __init__(self, photos):
        self.photos = photos

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, i):
        img = Image.open(io.BytesIO(self.photos[i])).convert("RGB")  # CAUSE
        left, top = random.randint(0, 32), random.randint(0, 32)
        img = img.crop((left, top, left + 128, top + 128))  # CAUSE
        img = img.resize((64, 64), Image.BILINEAR)  # CAUSE
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)  # CAUSE
        img = ImageEnhance.Brightness(img).enhance(random.uniform(0.8, 1.2))  # CAUSE
        img = ImageEnhance.Contrast(img).enhance(random.uniform(0.8, 1.2))  # CAUSE
        img = ImageEnhance.Color(img).enhance(random.uniform(0.8, 1.2))  # CAUSE
        arr = np.asarray(img, dtype=np.float32) / 255.0  # CAUSE
        arr = (arr - MEAN) / STD  # CAUSE
        return torch.from_numpy(arr.transpose(2, 0, 1).copy()), i % 10  # CAUSE


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(Food(encode_photos(1024)), batch_size=32, shuffle=True, num_workers=0)

for epoch in range(5):
    for i, (inputs, labels) in enumerate(loader):  # CAUSE
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if i % 16 == 0:
            print(f"[{epoch}, {i:3d}] loss: {loss.item():.3f}")
