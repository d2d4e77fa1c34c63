"""Instance types: names by pattern, the catalogue's file, and the types of one machine."""

from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from server_stub.runtimes.instance_types import Catalogue, Size, family_of, load, of_machine, parse


@pytest.mark.parametrize(
    ("name", "gpus", "cpu", "memory"),
    [
        ("v100.1gpu", 1, 0, 0),
        ("v100.16gpu", 16, 0, 0),
        ("a100.8gpu", 8, 0, 0),
        ("a100.1gpu.8C.243G", 1, 8, 243),
        ("a100.1gpu.40", 1, 0, 0),
        ("a100.1gpu.80vG.12C.96G", 1, 12, 96),
        ("a100plus.8gpu.80vG.96C.1952G", 8, 96, 1952),
        ("cpu.8C.32G", 0, 8, 32),
        ("free.0gpu", 0, 0, 0),
    ],
)
def test_a_name_of_the_platform_tells_its_size(name: str, gpus: int, cpu: int, memory: int) -> None:
    size = parse(name)
    assert size is not None
    assert (size.gpus, size.cpu, size.memory_gib) == (gpus, cpu, memory)


@pytest.mark.parametrize(
    "name",
    ["", "a100", "a100.gpu", "a100.8gpu.", "cpu.8C", "A100.8gpu", "a100.8gpu\n", "cpu-ai-2xgiant"],
)
def test_other_names_follow_no_pattern(name: str) -> None:
    assert parse(name) is None


A100 = Size(name="a100.8gpu", gpus=8, cpu=128, memory_gib=1944)


def test_a_listed_type_wins_over_its_pattern() -> None:
    odd = Size(name="a100.8gpu", gpus=4)
    assert Catalogue(instance_types=[odd]).find("a100.8gpu") is odd


def test_a_short_name_takes_cores_and_memory_from_its_family() -> None:
    size = Catalogue(instance_types=[A100]).find("a100.2gpu")
    assert (size.gpus, size.cpu, size.memory_gib) == (2, 32, 486)


def test_what_a_name_says_itself_is_kept() -> None:
    assert Catalogue(instance_types=[A100]).find("a100.2gpu.24C.192G").memory_gib == 192


@pytest.mark.parametrize("by_pattern", [True, False])
def test_an_unknown_type_is_refused_with_those_that_there_are(by_pattern: bool) -> None:
    with pytest.raises(InvalidRequest, match=r"'a100' is unknown; this server has: a100\.8gpu"):
        Catalogue(instance_types=[A100], by_pattern=by_pattern).find("a100")


def test_patterns_can_be_switched_off() -> None:
    with pytest.raises(InvalidRequest, match=r"a100\.4gpu"):
        Catalogue(instance_types=[A100], by_pattern=False).find("a100.4gpu")


def test_a_catalogue_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.toml"
    file.write_text(
        'default = "cpu-ai-2xgiant"\n[reserve]\ncpu = 1\n'
        '[[instance_types]]\nname = "cpu-ai-2xgiant"\ncpu = 32\nmemory_gib = 128\n'
        '[[volumes]]\nname = "data"\nclaim = "data-pvc"\n'
    )
    catalogue = load(file)
    assert catalogue.default == "cpu-ai-2xgiant"
    assert catalogue.find("cpu-ai-2xgiant").memory_gib == 128


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[instance_types]]\nname='a'\ngpu=1", "gpu"),
        ("[[instance_types]]\nname='a'\n[[instance_types]]\nname='a'", "twice"),
        ("default='b'", "'b' is unknown"),
        ("not toml", "is not valid TOML"),
        ("[[instance_types]]\nname='a'\ngpus=-1", "greater than or equal to 0"),
    ],
)
def test_a_wrong_catalogue_is_refused_by_what_is_wrong(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "catalogue.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=said):
        load(file)


def test_a_missing_catalogue_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.toml"):
        load(tmp_path / "none.toml")


def test_a_machine_without_gpus_is_one_type() -> None:
    assert [s.name for s in of_machine(2, 23.4, [])] == ["cpu.2C.23G"]


def test_a_machine_offers_its_gpus_in_powers_of_two_and_all_of_them() -> None:
    sizes = of_machine(48, 480, ["NVIDIA A100-SXM4-80GB"] * 6)
    assert [s.name for s in sizes] == [
        "cpu.48C.480G",
        "a100.1gpu",
        "a100.2gpu",
        "a100.4gpu",
        "a100.6gpu",
    ]
    assert (sizes[2].cpu, sizes[2].memory_gib) == (16, 160)


@pytest.mark.parametrize(
    ("gpu", "family"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("", "gpu"),
    ],
)
def test_a_card_gives_its_types_their_family(gpu: str, family: str) -> None:
    assert family_of(gpu) == family
