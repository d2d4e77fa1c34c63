"""A loop that prints; the evaluation prints other names, between the lines of the steps."""

import time

import torch
from record import note
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    print(
        f"torch {torch.__version__}, {sum(p.numel() for p in model.parameters())} parameters, lr "
        "0.05"
    )
    for epoch in range(1, 5):
        for step in range(1, 31):
            loss = nn.functional.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(
                f"epoch {epoch}/4 step {step}/30 loss={loss.item():.4f} acc: "
                f"{100 / (1 + loss.item()):.1f}%"
            )
            note(epoch * 30 + step, loss=f"{loss.item():.4f}", acc=f"{100 / (1 + loss.item()):.1f}")
            time.sleep(0.03)
        print(f"epoch {epoch}: val_loss {loss.item() * 1.1:.6f}")
        note(epoch, val_loss=f"{loss.item() * 1.1:.6f}")


if __name__ == "__main__":
    main()
