"""DistributedDataParallel whose rank 0 writes train.log by `logging`, and prints nothing."""

import logging
import time

import torch
import torch.distributed as dist
from record import note
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    if dist.get_rank() == 0:
        logging.basicConfig(
            filename="train.log",
            level=logging.INFO,
            format="%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s",
        )
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):
        loss = nn.functional.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            logging.info("Step: %d, train_loss: %.5f, lr: %.2e", step, loss.item(), 0.05)
            note(step, train_loss=f"{loss.item():.5f}", lr=f"{0.05:.2e}")
        time.sleep(0.03)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
