"""Instance types: the size of a worker of each type, from a catalogue or from the pattern of its
name.

Pure except for `load`, which reads the file. Sizes are per worker: GPUs, CPU cores, GiB of memory.
Names follow the ML Space platform: `a100plus.1gpu.80vG.12C.96G`, `cpu.8C.32G`, where C and G are of
the whole worker and vG is the memory of one card.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import parse_toml
from client_lib.spec.replace import replaced
from client_lib.spec.validation import Strict, empty

_NUMBER = "[0-9]{1,6}"  # up to a million cores or GiB: larger values overflow in later calculations
_GPU = re.compile(
    rf"(?P<family>[a-z0-9]+)\.(?P<gpus>{_NUMBER})gpu(?:\.{_NUMBER}(?:vG)?)?"
    rf"(?:\.(?P<cpu>{_NUMBER})C\.(?P<memory>{_NUMBER})G)?"
)
_CPU = re.compile(rf"cpu\.(?P<cpu>{_NUMBER})C\.(?P<memory>{_NUMBER})G")


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Size(Strict):
    """One instance type. Validated strictly: it is read from an operator's file."""

    name: Annotated[str, Field(min_length=1)]
    gpus: Annotated[int, Field(ge=0)] = 0
    cpu: Amount = 0
    """Cores; 0: unknown."""
    memory_gib: Amount = 0
    """0: unknown."""
    gpu_memory_gib: Amount = 0  # for the readers of the file: nothing computes with it
    """Memory of one card; 0: unknown."""
    description: str = ""

    @property
    def family(self) -> str:
        """`a100` of `a100.8gpu`; `cpu` of `cpu.8C.32G`."""
        return self.name.split(".", 1)[0]


S = TypeVar("S", bound=Size)


class Reserve(Strict):
    """Resources that a node keeps for itself: a worker that requests a whole
    node would never be placed.
    """

    cpu: Amount = 0
    memory_gib: Amount = 0


@lru_cache(256)
def parse(name: str) -> Size | None:
    """The size in the name itself, with 0 for missing parts; None: the name follows no pattern."""
    if match := _CPU.fullmatch(name):
        return Size(name=name, cpu=float(match["cpu"]), memory_gib=float(match["memory"]))
    if match := _GPU.fullmatch(name):
        cpu = float(match["cpu"] or 0)
        memory_gib = float(match["memory"] or 0)
        return Size(name=name, gpus=int(match["gpus"]), cpu=cpu, memory_gib=memory_gib)
    return None


def find_type(
    name: str,
    listed: Sequence[S],
    by_pattern: Callable[[Size], S | None] | None,
    patterns: str = "",
) -> S:
    """The listed type called `name`, else what `by_pattern` makes of the size in the name, if such
    names are known. Raises InvalidRequest for an unknown name, with the listed ones and a remark on
    `patterns`."""
    found = next((each for each in listed if each.name == name), None)
    if found is None and by_pattern and (size := parse(name)):
        found = by_pattern(size)
    if found is None:
        names = ", ".join(each.name for each in listed) or "none by name"
        raise InvalidRequest(
            f"instance type {name!r} is unknown; this server has: {names}{patterns}",
            hint="`client-lib instances` shows them with their sizes",
        )
    return found


class Catalogue(Strict):
    """The instance types of one machine: the list, then, if allowed, names by pattern."""

    instance_types: list[Size] = empty(list)
    default: str | None = None
    """Type of a job that names none; None: the runtime decides."""
    by_pattern: bool = True
    # without effect on one machine, like `volumes`; accepted as in a cluster's catalogue
    reserve: Reserve = Reserve()
    volumes: list[dict[str, object]] = empty(list)

    def find(self, name: str) -> Size:
        """The type called `name`. One by pattern without cores and memory takes them, per GPU, from
        a listed type of its family. Raises InvalidRequest as `find_type`."""
        if not self.by_pattern:
            return find_type(name, self.instance_types, None)
        patterns = "; names like a100.8gpu or cpu.8C.32G are read by pattern"
        return find_type(name, self.instance_types, self._completed, patterns)

    def _completed(self, size: Size) -> Size:
        like = next(
            (s for s in self.instance_types if size.gpus and s.gpus and s.family == size.family),
            None,
        )
        if like is None:
            return size
        share = size.gpus / like.gpus
        return replaced(
            size,
            cpu=size.cpu or like.cpu * share,
            memory_gib=size.memory_gib or like.memory_gib * share,
        )


def load(path: Path) -> Catalogue:
    """The catalogue in a TOML file: `default`, `by_pattern` and one `[[instance_types]]` per type.
    Raises InvalidRequest naming the file and what is wrong in it."""
    try:
        catalogue = Catalogue.model_validate(
            parse_toml(path.read_text("utf-8"), f"the catalogue {path}")
        )
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise InvalidRequest(f"the catalogue {path} can't be read: {error}") from error
    names = [size.name for size in catalogue.instance_types]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"the catalogue {path} lists {twice!r} twice")
    if catalogue.default is not None:
        catalogue.find(catalogue.default)
    return catalogue


def of_machine(cores: int, memory_gib: float, gpu_names: Sequence[str]) -> list[Size]:
    """The types that describe one machine: a type without GPUs, then types with 1, 2, 4 … and all
    GPUs.
    """
    name = f"cpu.{cores}C.{int(memory_gib)}G"
    sizes = [
        Size(
            name=name,
            cpu=cores,
            memory_gib=int(memory_gib),
            description="this machine, without GPUs",
        )
    ]
    total = len(gpu_names)
    for count in sorted(
        {1 << power for power in range(total.bit_length()) if total} | ({total} if total else set())
    ):
        share = count / total
        sizes.append(
            Size(
                name=f"{family_of(gpu_names[0])}.{count}gpu",
                gpus=count,
                cpu=max(1, int(cores * share)),
                memory_gib=round(memory_gib * share),
                description=gpu_names[0],
            )
        )
    return sizes


def family_of(gpu_name: str) -> str:
    """`a100` of `NVIDIA A100-SXM4-80GB`, `rtx4090` of `NVIDIA GeForce RTX 4090`: what a
    type of that card is called.
    """
    words = [
        w
        for w in re.split(r"[\s-]+", gpu_name.lower())
        if w not in ("nvidia", "geforce", "tesla", "quadro", "")
    ]
    if not words:
        return "gpu"
    joined = words[0] + (words[1] if words[0].isalpha() and len(words) > 1 else "")
    return re.sub(r"[^a-z0-9]", "", joined) or "gpu"
