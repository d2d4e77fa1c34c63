"""Trains with FSDP2 and torch.distributed.checkpoint, on gloo. `--fault` leaves out one thing that
a resume needs.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="")
args = parser.parse_args()
STEPS, EVERY = 60, 15

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights} if args.fault == "optimizer" else {"model": weights, "optim": moments}


done = sorted(
    int(name[5:])
    for name in os.listdir(folder)
    if name.startswith("step-") and os.path.exists(f"{folder}/{name}/.metadata")
)
start = done[-1] if done else 0
if done:
    loaded = state()
    dcp.load(loaded, checkpoint_id=f"{folder}/step-{start}")
    moments = loaded.get("optim", {"state": {}, "param_groups": []})
    if args.fault == "optimizer":
        model.load_state_dict(loaded["model"])
    else:
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=moments)
data = torch.randn(STEPS, size, 16, 16, generator=torch.Generator().manual_seed(1))
for step in range(start + 1, STEPS + 1):
    inputs = data[step - 1, rank]
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}/{STEPS} loss={loss.item():.6f}", flush=True)
    if step % EVERY == 0:
        dcp.save(state(), checkpoint_id=f"{folder}/step-{step}")
    time.sleep(0.02)
dist.destroy_process_group()
