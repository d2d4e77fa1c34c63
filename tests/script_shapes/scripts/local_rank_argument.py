"""The shape of scripts written for torch.distributed.launch: the local rank is an argument."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", dest="local", type=int, default=-1)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
assert args.local >= 0, "no local rank was passed"

dist.init_process_group("gloo", init_method="env://")
total = torch.tensor(float(args.local))
dist.all_reduce(total)
torch.manual_seed(dist.get_rank())
inputs, wanted = torch.randn(32, 4), torch.randn(32, 1)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), wanted)
    loss.backward()
    optimizer.step()
dist.all_reduce(loss)
if dist.get_rank() == 0:
    print(f"loss {loss.item() / dist.get_world_size():.5f} of {dist.get_world_size()} ranks")
