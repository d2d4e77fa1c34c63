"""Trains with Accelerate. `--fault` leaves out one thing that a resume needs."""

import argparse
import os
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="")
args = parser.parse_args()
EPOCHS = 4


def main():
    torch.manual_seed(0)
    folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(1))
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    if args.fault != "rates":
        accelerator.register_for_checkpointing(schedule)
    done = sorted(int(name[6:]) for name in os.listdir(folder) if name.startswith("epoch_"))
    first = 0
    if done:
        accelerator.load_state(f"{folder}/epoch_{done[-1]}")
        first = done[-1]
    step = first * len(data)
    for epoch in range(first, EPOCHS):
        for x, y in data:
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            print(f"step {step} loss={loss.item():.6f}", flush=True)
            time.sleep(0.02)
        schedule.step()
        accelerator.save_state(f"{folder}/epoch_{epoch + 1}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
