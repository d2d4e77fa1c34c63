"""A loop with PyTorch's SummaryWriter: scalars of both kinds, and a histogram, an
image and a text between them.
"""

import math
import time

import torch
from torch.utils.tensorboard import SummaryWriter


def main():
    writer = SummaryWriter(flush_secs=1)
    for step in range(0, 300, 3):
        writer.add_scalar("train/loss", math.exp(-step / 100), step)
        writer.add_scalar("train/accuracy", 1 - math.exp(-step / 100), step, new_style=True)
        if step % 30 == 0:
            writer.add_histogram("weights", torch.randn(1000), step)
            writer.add_image("picture", torch.rand(3, 64, 64), step)
            writer.add_text("note", f"step {step}", step)
            writer.add_scalars("both", {"a": step, "b": -step}, step)
        time.sleep(0.05)
    writer.close()


if __name__ == "__main__":
    main()
