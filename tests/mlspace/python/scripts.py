"""Scripts as users of the platform write them. They are run, never imported."""

# The shape of the platform's own documentation: the local rank from the environment, a log beside
# the script.
TRAIN = """
import logging
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
BASE_DIR = os.path.dirname(os.path.abspath(__file__))

logging.basicConfig(
    filename=os.path.join(BASE_DIR, "train.log"), level=logging.INFO, format="%(message)s"
)


def main():
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        loss = model(torch.ones(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logging.info("epoch %d rank %d loss %.4f", epoch, dist.get_rank(), loss.item())
    print("trained", dist.get_rank(), "of", dist.get_world_size(), "local", LOCAL_RANK)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

# torch.distributed.launch of old: the local rank is an argument.
ARGUMENT = """
import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
dist.init_process_group("gloo", init_method="env://")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("local", args.local_rank, "sum", value.item())
dist.destroy_process_group()
"""

RANKS = """
import os
import sys

names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FOO")
print("ranks", *(os.environ.get(name, "-") for name in names), *sys.argv[1:])
"""

# Every rank of the first round fails; the second goes on from the checkpoint.
ELASTIC = """
import os
import pathlib
import sys

folder = pathlib.Path(os.environ["CLIENT_LIB_CHECKPOINT_DIR"])
checkpoint = folder / f"epoch-of-{os.environ['RANK']}"
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(int(os.environ["WORLD_SIZE"])):
        (folder / f"epoch-of-{rank}").write_text("5")
    sys.exit(3)
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
print("resumed", rank, "of", size, "at", checkpoint.read_text(), *sys.argv[1:])
"""

MPI = """
import os

names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
print("mpi", *(os.environ[name] for name in names), os.environ["PMIX_HOSTNAME"].split("-mpi")[1])
"""
