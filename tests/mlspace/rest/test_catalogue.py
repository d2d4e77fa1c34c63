"""Instance types, workspaces, allocations and queues, as far as the
platform's command line needs them.
"""

import pytest

from client_lib.spec.wire import InstanceType
from server_stub.http.api.public_v2 import translate
from tests.mlspace.rest.conftest import Platform

V2 = "/public/v2"
WORKSPACE = "11111111-1111-4111-8111-111111111111"


def test_configs_are_regions_with_instance_types(ann: Platform) -> None:
    answer = ann("GET", f"{V2}/configs", params={"cluster_type": "MT"}).json()
    limits = {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "0"}
    types = [
        {
            "key": "cpu.2C.8G",
            "name": "cpu.2C.8G",
            "images": [],
            "resource": {"limits": limits, "requests": limits},
        }
    ]
    ssh = {"url": "", "port": 0}
    assert answer.keys() == {"regions", "datahub_images", "custom_images"}
    names = [region["name"] for region in answer["regions"]]
    assert {"DGX2-MT", "SR006"} <= set(names)
    assert answer["regions"] == [
        {
            "key": name,
            "name": name,
            "description": "",
            "nfsName": "",
            "instances_types": types,
            "ssh": ssh,
        }
        for name in names
    ]
    assert ann("GET", f"{V2}/configs?cluster_type=INF").json()["regions"] == []


def test_what_is_available(ann: Platform) -> None:
    assert ann("GET", f"{V2}/instance_types/SR006/available?allocation_name=x").json() == {
        "instance_types": [{"key": "cpu.2C.8G", "name": "cpu.2C.8G", "count": 0}]
    }
    assert ann("GET", f"{V2}/allocations/default/instance_types_availability").json() == [
        {"key": "cpu.2C.8G", "instance_type": "cpu.2C.8G", "available": 0}
    ]


def test_whatever_workspace_a_client_names_is_this_server(ann: Platform) -> None:
    (workspace,) = ann("GET", f"{V2}/workspaces/v3/").json()
    assert workspace["allocations"][0].keys() == {"id", "name", "cluster_key", "cluster_name"}
    one = ann("GET", f"{V2}/workspaces/v3/{WORKSPACE}").json()
    assert one == workspace | {"id": WORKSPACE}
    (allocation,) = ann("GET", f"{V2}/workspaces/v3/{WORKSPACE}/allocations").json()
    assert allocation.keys() == {"id", "name", "description", "region_key"}
    (queue,) = ann(
        "GET", f"{V2}/workspaces/v3/{WORKSPACE}/allocations/{allocation['id']}/queues"
    ).json()
    assert queue.keys() == {
        *(
            "id",
            "name",
            "description",
            "allocation_id",
            "active",
            "type",
            "default_for_job",
            "default_for_notebook",
        )
    }
    expected = [{"key": "cpu.2C.8G", "name": "cpu.2C.8G", "availability": 0, "storage_presets": []}]
    assert ann("GET", f"{V2}/queues/{queue['id']}/instance-types").json() == expected
    assert ann("GET", f"{V2}/allocations/{allocation['id']}/instance-types").json() == expected


@pytest.mark.parametrize(
    ("name", "cpu", "memory_gib", "shown"),
    [
        ("a100.8gpu", 64, 1944.5, "a100.8gpu.64C.1944G"),
        ("a100.1gpu.80vG", 12, 96, "a100.1gpu.80vG.12C.96G"),
        ("a100.1gpu.80vG.12C.96G", 10, 80, "a100.1gpu.80vG.12C.96G"),
        ("a100.2gpu", 0, 0, "a100.2gpu"),
        ("large", 8, 32, "large"),
    ],
)
def test_names_carry_cores_and_memory_as_clients_read_them(
    name: str, cpu: int, memory_gib: float, shown: str
) -> None:
    kind = InstanceType(name=name, gpus=1, cpu=cpu, memory_gib=memory_gib)
    assert translate.type_name(kind) == shown
    assert translate.catalogue_name(shown, [kind]) == translate.catalogue_name(name, [kind]) == name


@pytest.mark.parametrize(
    "path",
    [
        f"workspaces/v3/{WORKSPACE}/allocations/x/queues",
        "queues/x/instance-types",
        "allocations/x/instance-types",
        "allocations/x/instance_types_availability",
    ],
)
def test_an_id_that_is_none_is_404(path: str, ann: Platform) -> None:
    answer = ann("GET", f"{V2}/{path}")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error_code": 1, "error_message": "not found"},
    )
