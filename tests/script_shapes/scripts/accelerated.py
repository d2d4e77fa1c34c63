"""The shape of Accelerate's examples: Accelerator(), prepare,
gather_for_metrics, accelerator.save.
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator()
    set_seed(0)
    data = TensorDataset(torch.randn(66, 4), torch.randn(66, 1))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    for _ in range(2):
        for inputs, wanted in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), wanted))
            optimizer.step()
    losses = []
    with torch.no_grad():
        for inputs, wanted in loader:
            each = nn.functional.mse_loss(model(inputs), wanted, reduction="none")
            losses.append(accelerator.gather_for_metrics(each))
    found = torch.cat(losses)
    assert len(found) == len(data), "gather_for_metrics leaves out what fills up the last batch"
    if accelerator.is_main_process:
        print(f"loss {found.mean().item():.5f} of {accelerator.num_processes} ranks", flush=True)
    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), sys.argv[1])


if __name__ == "__main__":
    main()
