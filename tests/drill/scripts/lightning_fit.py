"""Trains with Lightning. `--fault` leaves out one thing that a resume needs."""

import argparse
import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="")
args = parser.parse_args()


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, number):
        inputs, wanted = batch
        loss = nn.functional.mse_loss(self.layers(inputs), wanted)
        print(f"step {self.global_step + 1} loss={loss.item():.6f}", flush=True)
        time.sleep(0.02)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def on_save_checkpoint(self, checkpoint):
        if args.fault == "optimizer":
            for state in checkpoint["optimizer_states"]:
                state["state"] = {}


def main():
    lightning.seed_everything(0)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(320, 4, generator=generator)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8)
    folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=1,
        num_nodes=int(os.environ.get("WORLD_SIZE", "1")),
        max_epochs=4,
        logger=False,
        enable_progress_bar=False,
        # at the end of an epoch: Lightning begins an epoch anew where a loader has no state
        callbacks=[ModelCheckpoint(folder, save_top_k=-1, every_n_epochs=1)],
    )
    names = [name for name in os.listdir(folder) if name.endswith(".ckpt")]
    names.sort(key=lambda name: os.path.getmtime(f"{folder}/{name}"))
    last = f"{folder}/{names[-1]}" if names and args.fault != "never-loads" else None
    trainer.fit(Line(), data, ckpt_path=last)


if __name__ == "__main__":
    main()
