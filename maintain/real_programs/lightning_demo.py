"""To the shape of Lightning's "in 15 minutes" autoencoder (Apache-2.0), on the real Trainer."""

import lightning
import torch
from torch import nn, utils


class LitAutoEncoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))

    def training_step(self, batch, batch_idx):
        x = batch[0].view(batch[0].size(0), -1)
        x_hat = self.decoder(self.encoder(x))
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    lightning.seed_everything(0)
    dataset = utils.data.TensorDataset(torch.rand(4000, 1, 28, 28))  # there it is MNIST
    train_loader = utils.data.DataLoader(dataset)  # batches of one
    autoencoder = LitAutoEncoder()
    trainer = lightning.Trainer(
        limit_train_batches=800,
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model=autoencoder, train_dataloaders=train_loader)
    torch.save(autoencoder.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
