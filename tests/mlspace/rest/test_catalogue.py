"""Names of instance types. The answers of the catalogue are in golden/catalogue.json."""

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
