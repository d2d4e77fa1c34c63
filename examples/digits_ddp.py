"""Train a small convolutional network on scikit-learn's handwritten digits, with
DistributedDataParallel.

An ordinary PyTorch script: it knows nothing of client_lib and runs unchanged under torchrun, on the
CPU (gloo) and on GPUs (nccl). It follows two habits of ML Space scripts: a `train.log` beside the
script, and `--epochs`-like options.
"""

import argparse
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BASE_DIR = Path(__file__).resolve().parent
log = logging.getLogger("digits")


class Net(nn.Module):
    """8 x 8 pixels in, 10 digits out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.out(F.relu(self.hidden(x.flatten(1))))


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1437 pictures to learn from, 360 to test with; the same split in every process."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    split = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=data.target)
    train_images, test_images, train_labels, test_labels = split
    return TensorDataset(train_images, train_labels), TensorDataset(test_images, test_labels)


def train(
    model: nn.Module, data: TensorDataset, epochs: int, batch: int, device: torch.device
) -> None:
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {len(sampler)} pictures, loss {total / len(loader):.4f}")
        log.info("rank %d epoch %d loss %.4f", dist.get_rank(), epoch, total / len(loader))


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Each process counts its part of the pictures, all_reduce adds the counts up."""
    images, labels = data[dist.get_rank() :: dist.get_world_size()]
    right = (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    dist.all_reduce(right)
    return int(right) / len(data)


def save(model: DistributedDataParallel) -> Path:
    path = Path(os.environ.get("CLIENT_LIB_CHECKPOINT_DIR", BASE_DIR)) / "digits.pt"
    torch.save(model.module.state_dict(), path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="pictures per process and step")
    options = parser.parse_args()
    logging.basicConfig(
        filename=BASE_DIR / "train.log", level=logging.INFO, format="%(asctime)s %(message)s"
    )

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} trains on {device}")

    train_data, test_data = digits()
    model = DistributedDataParallel(Net().to(device))
    train(model, train_data, options.epochs, options.batch, device)
    reached = accuracy(model, test_data, device)
    if dist.get_rank() == 0:
        print(f"model saved to {save(model)}")
        print(f"test accuracy {reached:.4f}")
        log.info("test accuracy %.4f", reached)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
