"""Instance types as the platform's notebooks read them: printed by
rich, asked as a DataFrame is.
"""

import io
from typing import Any

import pytest
import rich

import client_lib
from client_lib import Client, InvalidRequest
from client_lib.mlspace.calls import Table, condition
from client_lib.spec.mlspace import REGIONS

ROWS = [
    {"region": "SR003", "instance_type": "a100.1gpu", "memory": 243.0, "cpu": 16.0, "gpu": 1},
    {"region": "SR003", "instance_type": "cpu.2C.8G", "memory": 7.5, "cpu": 1.5, "gpu": 0},
    {"region": "SR006", "instance_type": "a100.1gpu", "memory": 243.0, "cpu": 16.0, "gpu": 1},
]
TABLE = Table(tuple(ROWS[0]), ROWS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('region == "SR003"', [0, 1]),
        ("region == 'SR003' and gpu >= 1", [0]),
        ("(region == 'SR003') & (gpu >= 1)", [0]),
        ("region == 'SR003' & gpu >= 1", [0]),
        ("gpu == 0 | region == 'SR006'", [1, 2]),
        ("~(gpu == 1)", [1]),
        ("not gpu", [1]),
        ("1 < cpu <= 2", [1]),
        ("gpu > -1", [0, 1, 2]),
        ("region in ['SR006', 'SR008']", [2]),
        ("region == ['SR006', 'SR008']", [2]),
        ("region not in ('SR006',)", [0, 1]),
        ('region == "a & b"', []),
        ("memory != 7.5", [0, 2]),
    ],
)
def test_a_query_is_read_as_pandas_reads_it(text: str, found: list[int]) -> None:
    assert TABLE.query(text).to_dict() == [ROWS[index] for index in found]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "gpu >",
            "speed > 1",
            "gpu > 'a'",
            "__import__('os')",
            "gpu.real",
            "gpu + 1 > 1",
            "region[0] == 'S'",
        ),
        *(
            "__builtins__ == 1",
            "__debug__",
            "-" * 100_000 + "gpu",
            "not " * 100_000 + "gpu",
            "gpu == '\ud800'",
        ),
    ],
)
def test_anything_else_is_refused_and_never_evaluated(text: str) -> None:
    with pytest.raises(InvalidRequest, match="query"):
        TABLE.query(text)


def test_a_refused_operator_is_shown_with_its_operands() -> None:
    with pytest.raises(InvalidRequest, match="'gpu is None' can't stand in a condition"):
        condition("not gpu is None")


def test_a_condition_is_read_once_for_many_rows() -> None:
    holds = condition("gpu")
    assert [holds({"gpu": count}) for count in (0, 2)] == [False, True]


def test_it_prints_with_rich_in_a_notebook_and_as_text() -> None:
    out = io.StringIO()
    rich.print(TABLE, file=out)
    for shown in (out.getvalue(), str(TABLE), TABLE._repr_html_()):
        assert all(word in shown for word in ("instance_type", "a100.1gpu", "7.5Gi", "SR006"))
    assert len(str(TABLE).splitlines()) == 1 + len(TABLE)


def test_it_is_a_frame_in_the_small() -> None:
    assert list(TABLE) == TABLE.columns == list(ROWS[0])
    assert TABLE["gpu"] == [1, 0, 1]
    with pytest.raises(KeyError, match="gpus"):
        TABLE["gpus"]


@pytest.mark.parametrize(
    ("arguments", "regions"),
    [
        ({}, list(REGIONS)),
        ({"regions": "SR003"}, ["SR003"]),
        ({"regions": client_lib.RegionMT.SR004}, ["SR004"]),
        ({"regions": ["SR003", "SR006"]}, ["SR003", "SR006"]),
        ({"cluster_type": client_lib.ClusterType.MT}, list(REGIONS)),
        ({"cluster_type": client_lib.ClusterType.INF}, []),
    ],
)
def test_instance_types_of_the_server_in_each_region(
    client: Client, arguments: dict[str, Any], regions: list[str]
) -> None:
    found = client_lib.get_instance_types(**arguments)
    assert found.columns == ["region", "instance_type", "memory", "cpu", "gpu"]
    assert list(dict.fromkeys(found["region"])) == regions
    assert set(found["instance_type"]) == (
        {kind.name for kind in client.instance_types()} if regions else set()
    )


def test_the_cluster_type_may_come_first() -> None:
    assert len(client_lib.get_instance_types(client_lib.ClusterType.INF)) == 0


def test_what_is_free_now(client: Client) -> None:
    free = client_lib.get_available_resources_count(region="SR006")
    kinds = {kind.name: kind.available for kind in client.instance_types()}
    assert dict(zip(free["instance_type"], free["available"], strict=True)) == kinds
    assert set(free["region"]) == {"SR006"}


def test_there_are_no_images_and_it_says_what_runs(client: Client) -> None:
    with pytest.warns(UserWarning, match="interpreter"):
        assert client_lib.get_docker_images("MT") == []
