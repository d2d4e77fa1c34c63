"""The shape of a script written for torchrun: `init_process_group()` and LOCAL_RANK."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main() -> None:
    dist.init_process_group(backend="gloo")
    local_rank, per_node = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    assert dist.get_rank() % per_node == local_rank
    torch.manual_seed(dist.get_rank())
    inputs, wanted = torch.randn(32, 4), torch.randn(32, 1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(
            f"loss {loss.item() / dist.get_world_size():.5f} of {dist.get_world_size()} ranks",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
