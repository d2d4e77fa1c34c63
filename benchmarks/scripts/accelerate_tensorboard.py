"""Accelerate with its tracker of TensorBoard."""

import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="out")
    accelerator.init_trackers("tiny", config={"lr": 0.05})
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = DataLoader(
        TensorDataset(torch.randn(400, 8), torch.randn(400, 1)), batch_size=5, shuffle=True
    )
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for step, (inputs, wanted) in enumerate(data):
        loss = nn.functional.mse_loss(model(inputs), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log(
            {"train/loss": loss.item(), "weight": model.state_dict().popitem()[1].norm().item()},
            step=step,
        )
        time.sleep(0.05)
    accelerator.end_training()


if __name__ == "__main__":
    main()
