"""The training of elastic jobs in tests, on this machine and on a cluster."""

TRAINS = """
import os, pathlib, signal, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
folder = pathlib.Path(os.environ["CLIENT_LIB_CHECKPOINT_DIR"])
step = int((folder / "step").read_text()) if (folder / "step").exists() else 0
dist.barrier()
print(f"begin {rank} of {size} at {step} pid {os.getpid()}", flush=True)
while True:
    stop = torch.tensor(float((folder / "stop").exists()))
    dist.all_reduce(stop)
    if stop:
        break
    step += 1
    if rank == 0:
        (folder / "step.new").write_text(str(step))
        (folder / "step.new").replace(folder / "step")
    if (folder / f"kill-{rank}").exists():
        (folder / f"kill-{rank}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
print(f"end {rank} of {size}", flush=True)
"""
"""Counts steps in its checkpoint folder until a file `stop` is there; a file
`kill-RANK` kills that rank once.
"""
