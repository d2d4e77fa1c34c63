"""Names of instance types. The answers of the catalogue are in golden/catalogue.json."""

import re

import pytest

from client_lib.spec.wire import InstanceType
from server_stub.http.api.public_v2 import translate


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
    ("name", "sizes"),
    [
        ("cpu.2C.8G", (0, 1.5, 8)),
        ("a100.1gpu.80vG.12C.96G", (1, 12.0, 96)),
        ("a100.8gpu.64C.1944G", (8, 64.0, 1944)),
    ],
)
def test_the_label_has_what_cloudru_utils_reads(name: str, sizes: tuple[int, float, int]) -> None:
    """The expressions of its table of available resources."""
    gpus, cpu, memory = sizes
    kind = InstanceType(name=name, gpus=gpus, cpu=cpu, memory_gib=memory + 0.5)
    label = translate.type_label(kind)
    found_gpus = re.search(r"(\d+)\s*GPU", label, re.IGNORECASE)
    found_cpu = re.search(r"(\d+(?:\.\d+)?)\s*(?:v)?CPU(?:-cores)?", label, re.IGNORECASE)
    found_memory = re.search(r"(\d+)\s*(?:GB|Gb)\s*RAM", label, re.IGNORECASE)
    assert (int(found_gpus[1]) if found_gpus else 0) == gpus
    assert found_cpu
    assert float(found_cpu[1]) == cpu
    assert found_memory
    assert int(found_memory[1]) == memory
