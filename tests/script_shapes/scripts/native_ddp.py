"""The shape of PyTorch's DDP tutorial: setup() and cleanup() on RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def setup() -> tuple[int, int]:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    return rank, world_size


def cleanup() -> None:
    dist.destroy_process_group()


def main() -> None:
    rank, world_size = setup()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data, world_size, rank)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, wanted in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimizer.step()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"loss {loss.item() / world_size:.5f} of {world_size} ranks", flush=True)
    cleanup()


if __name__ == "__main__":
    main()
