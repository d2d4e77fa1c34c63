"""Accelerate without a tracker: a bar of tqdm, and a line that rank 0 prints each 5 steps."""

import torch
from accelerate import Accelerator
from record import note
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

EPOCHS = 3


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = DataLoader(
        TensorDataset(torch.randn(400, 8), torch.randn(400, 1)), batch_size=5, shuffle=True
    )
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    bar = tqdm(range(EPOCHS * len(data)), disable=not accelerator.is_local_main_process)
    done = 0
    for epoch in range(EPOCHS):
        for inputs, wanted in data:
            loss = nn.functional.mse_loss(model(inputs), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            bar.update(1)
            done += 1
            if done % 5 == 0:
                mean = accelerator.reduce(loss.detach(), "mean").item()
                accelerator.print(f"epoch {epoch}, step {done}: loss {mean:.5f}")
                if accelerator.is_main_process:
                    note(done, loss=f"{mean:.5f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
