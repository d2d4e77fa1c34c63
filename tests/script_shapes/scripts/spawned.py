"""The shape of PyTorch's imagenet example: one process per machine, which
spawns its own, one per GPU.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--per-node", type=int, default=2)
    parser.add_argument("--dist-url", default="env://")
    args = parser.parse_args()
    nodes, node = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    mp.spawn(main_worker, nprocs=args.per_node, args=(node, nodes * args.per_node, args))


def main_worker(gpu: int, node: int, world_size: int, args: argparse.Namespace) -> None:
    rank = node * args.per_node + gpu
    dist.init_process_group("gloo", init_method=args.dist_url, world_size=world_size, rank=rank)
    torch.manual_seed(rank)
    inputs, wanted = torch.randn(32, 4), torch.randn(32, 1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"loss {loss.item() / world_size:.5f} of {world_size} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
