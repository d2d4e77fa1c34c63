"""Makes what is built once: programs, unpacked packages, images. Fast where everything is there."""

import shutil
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tests.cluster import debian, images, programs
from tests.cluster.locks import held
from tests.cluster.places import Home

LOCK_S = 3600.0

Say = Callable[[str], None]


def build(home: Home, components: Iterable[str], recipes: Iterable[str], say: Say) -> None:
    """`say` gets a line before each thing that takes time. Of two processes at once
    the second finds it made.
    """
    steps = list(_missing_steps(home, list(components), [images.RECIPES[name] for name in recipes]))
    if not steps:
        return
    with held(home.build_lock, LOCK_S, "is building"):
        for label, step in steps:
            say(f"building {label}")
            begun = time.monotonic()
            step()
            say(f"built {label} in {time.monotonic() - begun:.0f} s")


def usr(home: Home) -> Path | None:
    """The unpacked packages' /usr; None where there is no apt and the
    machine's own commands serve.
    """
    folder = debian.root(home) / "usr"
    return folder if folder.exists() else None


def obsolete(home: Home) -> list[Path]:
    """Builds that no recipe of today makes."""
    current = {
        *programs.current(home),
        debian.root(home),
        *(images.archive(home, recipe) for recipe in images.RECIPES.values()),
    }
    return [path for path in everything(home) if path not in current]


def everything(home: Home) -> list[Path]:
    """Every build, current or not; clusters are none."""
    return sorted(
        path for folder in (home.bin, home.packages, home.images) for path in folder.glob("*")
    )


def remove(home: Home, paths: Iterable[Path]) -> None:
    with held(home.build_lock, LOCK_S, "is building"):
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _missing_steps(
    home: Home, components: list[str], recipes: list[images.Recipe]
) -> Iterable[tuple[str, Callable[[], None]]]:
    if (
        debian.commands(components) or any(recipe.debian for recipe in recipes)
    ) and not debian.is_there(home):
        yield "packages of Debian", partial(debian.unpack, home)
    wanted = [name for name in components if programs.is_built_by_us(name)]
    if any(not recipe.debian for recipe in recipes):
        wanted.append("pause")
    for family in programs.FAMILIES:
        names = [
            name for name in wanted if name in family.packages and not programs.is_there(home, name)
        ]
        if names:
            yield (
                f"{', '.join(names)} {family.version}".strip(),
                partial(programs.build, home, family, names),
            )
    for recipe in recipes:
        if not images.archive(home, recipe).exists():
            yield f"image {recipe.reference}", partial(images.build, home, recipe)
