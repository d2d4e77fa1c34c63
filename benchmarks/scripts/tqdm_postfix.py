"""A bar of tqdm for each epoch, with a postfix."""

import time

import torch
from record import note
from torch import nn
from tqdm import tqdm


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.zeros(())
    for epoch in range(3):
        bar = tqdm(range(60), desc=f"Epoch {epoch}")
        for _ in bar:
            # it was drawn when the step was counted
            note(epoch * 60 + bar.n, loss=f"{loss.item():.3g}", lr="5.0e-02")
            loss = nn.functional.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.set_postfix(loss=loss.item(), lr=f"{0.05:.1e}")
            note(epoch * 60 + bar.n, loss=f"{loss.item():.3g}", lr="5.0e-02")
            time.sleep(0.03)
        note(epoch * 60 + bar.n, loss=f"{loss.item():.3g}", lr="5.0e-02")


if __name__ == "__main__":
    main()
