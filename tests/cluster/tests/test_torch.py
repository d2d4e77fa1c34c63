"""Real training: Debian's PyTorch in two pods of a `restricted` namespace. The image
takes minutes to build, once.
"""

import pytest

from tests.cluster import Cluster
from tests.cluster.tests.jobs import PATH, ends, pytorch_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
loss = model(torch.ones(8, 4) * (dist.get_rank() + 1)).square().mean()
loss.backward()
total = model.module.weight.grad.clone()
dist.all_reduce(total)
print("gradients agree", torch.allclose(total, model.module.weight.grad * dist.get_world_size()))
"""


def test_two_pods_train_with_one_gradient(cluster: Cluster) -> None:
    assert cluster.load("torch") == ["localhost/torch:local"]
    cluster.api.create(
        PATH.format("jobs"),
        pytorch_job("trains", ["python3", "-c", TRAIN], image="localhost/torch:local"),
    )
    assert ends(cluster.api, "trains") == "Succeeded"
    log = cluster.api.get("/api/v1/namespaces/jobs/pods/trains-master-0/log")
    assert "gradients agree True" in log
