import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, _):
        inputs, wanted = batch
        loss = nn.functional.mse_loss(self.layer(inputs), wanted)
        self.log("train_loss", loss, prog_bar=True)
        time.sleep(0.01)
        return loss

    def validation_step(self, batch, _):
        inputs, wanted = batch
        self.log(
            "val_loss",
            nn.functional.mse_loss(self.layer(inputs), wanted),
            prog_bar=True,
            sync_dist=True,
        )

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(**options):
    lightning.seed_everything(0)
    data = [TensorDataset(torch.randn(count, 4), torch.randn(count, 1)) for count in (1600, 64)]
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=4, **options)
    trainer.fit(Line(), *(DataLoader(each, batch_size=8) for each in data))
