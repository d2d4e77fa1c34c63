"""The shape of Lightning's examples: a LightningModule, Trainer with devices and
num_nodes; it can start its ranks.
"""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        inputs, wanted = batch
        loss = nn.functional.mse_loss(self.layer(inputs), wanted)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int)
    parser.add_argument("--num-nodes", type=int, default=1)
    args = parser.parse_args()
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=args.devices,
        num_nodes=args.num_nodes,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), DataLoader(data, batch_size=4))
    if trainer.is_global_zero:
        print(
            f"loss {trainer.callback_metrics['loss'].item():.5f} of {trainer.world_size} ranks",
            flush=True,
        )


if __name__ == "__main__":
    main()
