"""A script written for the ML Space platform, as its user writes it. Checked by
mypy --strict, never run.
"""

from typing_extensions import assert_type

import client_lib
from client_lib import (
    JobHealthAction,
    JobHealthParams,
    JobHealthSubAction,
    RegionEnum,
    RegionMT,
    jobs,
    kill,
    logs,
)


def submit(priority: client_lib.PriorityClass | None = None) -> client_lib.Job:
    return client_lib.Job(
        base_image="cr.ai.cloud.ru/aicloud-base-images/py3.12-torch2.7.0:0.0.41",
        script="/home/jovyan/train.py",
        instance_type="a100plus.1gpu.80vG.12C.96G",
        region=RegionMT.SR006,
        type=client_lib.Job.Type.pytorch2,
        n_workers=2,
        processes_per_worker="default",
        flags={"epochs": 10, "amp": True},
        env_variables=None,
        pytorch_use_env=True,
        elastic_min_workers="default",
        elastic_max_workers=2,
        priority_class=priority or client_lib.PriorityClass.medium,
        health_params=JobHealthParams(
            log_period=30, action=JobHealthAction.restart, sub_actions=[JobHealthSubAction.notify]
        ),
        queue_name=None,
        include_nodes=["node-1"],
        n_gpus=1,
        cuda11=True,
        in_communal_cluster=True,
        detached=True,
    )


job = submit(client_lib.PriorityClass.low)
assert_type(job.submit(), str)
assert_type(job.job_name, "str | None")
job.logs(tail=10, verbose=False)
jobs(region=RegionEnum.SR002_MT)
logs("lm-mpi-job-x", region="SR006", tail=10, verbose=True)
assert_type(kill("lm-mpi-job-x", region="SR006"), str)
assert_type(client_lib.get_job_status("lm-mpi-job-x", region="SR006"), str)
assert_type(client_lib.job_status("lm-mpi-job-x"), str)
assert_type(len(client_lib.get_instance_types(client_lib.ClusterType.MT).query("gpu > 0")), int)
assert_type(client_lib.get_docker_images("MT"), list[str])
assert_type(client_lib.update(), str)
assert_type(client_lib.environment.NAMESPACE, "str | None")
client_lib.environment = client_lib.Environment()
