"""Trains with plain DDP, and resumes at any step. `--fault` leaves out one thing that is needed
for it.
"""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--keep", action="store_true", help="a file for each step")
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--fault", default="")
args = parser.parse_args()
fault = args.fault

dist.init_process_group("gloo")
rank = dist.get_rank()
if args.seed:
    torch.manual_seed(args.seed + rank)
folder = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
data = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
wanted = data.sum(1, keepdim=True)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1)
)
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.98**step)
scaler = torch.amp.GradScaler("cpu", enabled="scaler" in fault, init_scale=1024.0)


def path_of(step):
    return os.path.join(folder, f"step-{step}.pt" if args.keep else "last.pt")


def save(step):
    generators = [None] * dist.get_world_size()
    dist.all_gather_object(generators, (torch.get_rng_state(), random.getstate()))
    state = {"model": model.state_dict(), "step": step}
    if fault != "optimizer":
        state["optimizer"] = optimizer.state_dict()
    if fault != "rates":
        state["schedule"] = schedule.state_dict()
    if fault != "random":
        state["generators"] = [torch_state for torch_state, _ in generators]
    if rank == 0 or fault == "shared":
        path = path_of(step)
        if fault in ("in-place", "shared"):
            torch.save(state, path)
        else:
            torch.save(state, f"{path}.{rank}.new")
            os.replace(f"{path}.{rank}.new", path)
    dist.barrier()


def load():
    names = [name for name in os.listdir(folder) if name.endswith(".pt")]
    if not names or fault == "never-loads":
        return 0
    newest = max(names, key=lambda name: int("".join(filter(str.isdigit, name)) or 0))
    state = torch.load(os.path.join(folder, newest), weights_only=True)
    if fault != "weights":
        model.load_state_dict(state["model"])
    if "optimizer" in state:
        optimizer.load_state_dict(state["optimizer"])
    if "schedule" in state:
        schedule.load_state_dict(state["schedule"])
    if fault == "rates":
        for group in optimizer.param_groups:
            group["lr"] = 0.01
    if "generators" in state:
        torch.set_rng_state(state["generators"][rank])
    return 0 if fault == "counter" else state["step"]


def batches(start):
    """The batches from a step on: each epoch has an order of its own."""
    size = dist.get_world_size()
    step = start
    while step < args.steps:
        per_epoch = 8
        epoch = (step if fault != "order" else step - start) // per_epoch
        order = torch.randperm(256, generator=torch.Generator().manual_seed(epoch))
        place = (step if fault != "order" else step - start) % per_epoch
        chosen = order[place * 16 * size :][: 16 * size][rank::size]
        yield step + 1, chosen
        step += 1


start = load()
for step, chosen in batches(start):
    loss = torch.nn.functional.mse_loss(wrapped(data[chosen]), wanted[chosen])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    print(
        f"step {step}/{args.steps} loss={loss.item():.6f} lr={schedule.get_last_lr()[0]:.6f}",
        flush=True,
    )
    if step % args.every == 0:
        save(step)
    time.sleep(args.pause)
dist.destroy_process_group()
