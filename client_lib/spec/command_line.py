"""Texts that users write: a script's words, by shell rules and without a shell; names of jobs and
options; TOML, YAML.

Pure. Loads nothing but the standard library, and PyYAML for YAML.
"""

import os
import re
import shlex
import sys
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from client_lib.errors import InvalidRequest

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ -]*")


def split_script(script: str) -> list[str]:
    """The words of `script` by shell rules. A script that ends in .py and holds no quotes is tried
    as one path by the client before it is sent (an existing path wins over splitting; the client
    quotes it then).

    Raises ValueError: unbalanced quotes, or unquoted shell syntax (`&|;<>$` or a back-tick), with
    the way out."""
    return list(_words(script))


@lru_cache(256)  # called several times at each submit, and shlex takes 100 times as long as `split`
def _words(script: str) -> tuple[str, ...]:
    if _PLAIN.fullmatch(script):  # nothing to interpret
        return tuple(script.split())
    if wrong := _shell_syntax(script):
        raise ValueError(
            f"{script!r} holds {wrong!r}, which only a shell understands and none runs here; "
            f"write bash -c {shlex.quote(script)}"
        )
    try:
        return tuple(shlex.split(script))
    except ValueError as error:
        raise ValueError(f"{script!r} can't be split into words: {error}") from error


def _shell_syntax(script: str) -> str | None:
    """The first character that a shell would act on beyond splitting and quotes, or None."""
    quote: str | None = None
    characters = iter(script)
    for character in characters:
        if character == "\\" and quote != "'":
            next(characters, None)
        elif character == quote:
            quote = None
        elif quote is None and character in "'\"":
            quote = character
        elif (character in "$`" and quote != "'") or (character in "|&;<>" and quote is None):
            return character
    return None


class OwnModule(NamedTuple):
    """A script as a module of the package that it imports."""

    folder: str
    """The folder in which `python -m` finds the package."""
    module: str


_FOLDERS_ABOVE = 4


def own_module(script: str, package: str) -> OwnModule | None:
    """The script as a module, where a folder of the name `package` lies in a folder above the
    script's own; None: there is none. Reads the disk."""
    folder = os.path.dirname(os.path.abspath(script))
    below = [os.path.splitext(os.path.basename(script))[0]]
    for _ in range(_FOLDERS_ABOVE):
        below.insert(0, os.path.basename(folder))
        folder = os.path.dirname(folder)
        if package.isidentifier() and os.path.isdir(os.path.join(folder, package)):
            is_module = all(name.isidentifier() for name in below)
            return OwnModule(folder, ".".join(below)) if is_module else None
    return None


OPTION_NAMES: dict[str, tuple[str, ...]] = {
    # field: its options where they are not simply --the-field
    "base_image": ("--image", "--base-image"),
    "n_workers": ("-N", "--n-workers"),
    "instance_type": ("-i", "--instance-type"),
    "type": ("-t", "--type"),
    "env_variables": ("-e", "--env"),
    "secrets": ("--secret",),
    "labels": ("-l", "--label"),
    "flags": ("--flag",),
    "volumes": ("--volume",),
    "outputs": ("--outputs-glob",),  # --output is the form of what is printed
    "preflight_check": ("--preflight",),
    "requirements": ("--requirement",),
    "include_nodes": ("--include-node",),
    "exclude_nodes": ("--exclude-node",),
}


def option_names(field: str) -> tuple[str, ...]:
    """Options that set a field of the spec."""
    return OPTION_NAMES.get(field, ("--" + field.replace("_", "-"),))


# --- names of jobs and groups

NAME_MAX = 50  # Kubernetes: Service names hold <name>-worker-9999 in 63 characters
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # a DNS-1035 label
_INTERPRETERS = re.compile(r"(ba|z|da|k)?sh|python[\d.]*|torchrun|accelerate|env|exec|nohup")


def check_name(name: str) -> None:
    """Raises ValueError unless `name` is a DNS-1035 label of at most 50 characters."""
    if len(name) > NAME_MAX:
        raise ValueError(f"{name!r} has {len(name)} characters; at most {NAME_MAX} are allowed")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a DNS label: lower-case letters, digits and '-', beginning with a "
            "letter, ending with a letter or digit"
        )


def name_for(script: str, suffix: str) -> str:
    """`<script's stem>-<suffix>`, a DNS label: `my Model_v2.py --lr 1` and `x7k2m`
    give `my-model-v2-x7k2m`.
    """
    stem = os.path.splitext(os.path.basename(_program(split_script(script))))[0]
    label = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"job-{label}".rstrip("-")
    return f"{label[: NAME_MAX - 1 - len(suffix)].rstrip('-')}-{suffix}"


def _program(words: list[str]) -> str:
    """The first word that is neither an interpreter nor an option of one."""
    named = (
        w
        for w in words
        if not w.startswith("-") and not _INTERPRETERS.fullmatch(os.path.basename(w))
    )
    found = next(named, words[0])
    return found if re.fullmatch(r"[\w./ -]+", found) else words[0]  # `bash -c '...'` is named bash


def parse_toml(text: str, what: object) -> dict[str, Any]:
    """Raises InvalidRequest, which names `what`, for a text that is not valid TOML."""
    if sys.version_info >= (3, 11):  # loaded here: most calls have no file to parse
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]  # on Python 3.10 only
    try:
        data: dict[str, Any] = tomllib.loads(text)
        return data
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{what} is not valid TOML: {error}") from None


def parse_yaml(text: str, what: object) -> Any:
    """The value of a text of YAML. Raises InvalidRequest, which names `what`: it is not valid, or
    has a key twice in one table, which YAML forbids, and of which PyYAML keeps the last."""
    import yaml  # 20 ms

    class UniqueKeys(yaml.SafeLoader):
        def construct_mapping(
            self, node: yaml.MappingNode, deep: bool = False
        ) -> dict[Hashable, Any]:
            keys = [key.value for key, _ in node.value if key.value != "<<"]
            twice = next((key for key in keys if keys.count(key) > 1), None)
            if twice is not None:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {twice!r} stands there twice", problem_mark=node.start_mark
                )
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, UniqueKeys)
    except Exception as error:  # PyYAML raises any, for `!!bool x` a KeyError
        raise InvalidRequest(f"{what} is not valid YAML: {error}") from error
