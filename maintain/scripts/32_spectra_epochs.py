"""Classify spectra with a 1-D CNN: epochs, validation, early stopping, the best weights kept."""
# bottleneck: compute
# cause: none
# compute is 92 % of the loop

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def spectra(n, length=256):
    y = torch.randint(0, 8, (n,))
    axis = torch.arange(length).float()
    peaks = torch.exp(-(((axis - 20 - 30 * y.view(-1, 1)) / 6) ** 2))
    return TensorDataset((peaks + 0.4 * torch.randn(n, length)).unsqueeze(1), y)


class Trainer:
    def __init__(self, model, train_loader, val_loader, patience=8):
        self.model = model
        self.train_loader, self.val_loader = train_loader, val_loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.patience = patience

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = [self.criterion(self.model(x), y).item() for x, y in self.val_loader]
        return sum(losses) / len(losses)

    def fit(self, epochs):
        best, best_state, waited = float("inf"), None, 0
        for epoch in range(epochs):
            self.train_epoch()
            val_loss = self.validate()
            print(f"epoch {epoch}: val loss {val_loss:.5f}")
            if val_loss < best:
                best, best_state, waited = val_loss, copy.deepcopy(self.model.state_dict()), 0
            else:
                waited += 1
                if waited > self.patience:
                    break
        self.model.load_state_dict(best_state)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, val = random_split(spectra(1060), [960, 100])
    model = nn.Sequential(
        nn.Conv1d(1, 32, 9, padding=4),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 9, padding=4),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(64, 64, 9, padding=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(64, 8),
    )
    loaders = DataLoader(train, 32, shuffle=True), DataLoader(val, 50)
    Trainer(model, *loaders).fit(epochs=11)


if __name__ == "__main__":
    main()
