"""`-c job.yaml`: the fields of a job spec, as they are called there. JSON is YAML, so a .json file will do.

Relative paths in the file (`script`, `working_dir`) are relative to the file, so that it works from every folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from client_lib.errors import InvalidRequest

PATHS = ("working_dir",)


class _Loader(yaml.SafeLoader):
    """Loads plain values only. A key that stands there twice is an error; YAML would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        doubled = next((key for key in keys if keys.count(key) > 1), None)
        if doubled is not None:
            raise yaml.MarkedYAMLError(problem=f"the key {doubled!r} stands there twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def read(path: str) -> dict[str, Any]:
    """The fields in the file; unknown ones are left for the spec to refuse.

    Raises InvalidRequest naming the file, and the line where YAML is broken.
    """
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise InvalidRequest(f"can't read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InvalidRequest(f"{path} holds no fields", hint="it needs lines like `script: train.py`, `n_workers: 2`")
    return from_folder(content, Path(path).parent)


def from_folder(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`fields` with their relative paths resolved from `folder`."""
    moved = {key: str(folder / value) for key, value in fields.items() if key in PATHS and isinstance(value, str)}
    if isinstance(fields.get("script"), str):
        moved["script"] = _script_from(fields["script"], folder)
    return fields | moved


def _script_from(script: str, folder: Path) -> str:
    """A script that lies in the folder gets its path; a command that is found by PATH stays as it is."""
    if (folder / script).is_file():
        return shlex.quote(str(folder / script))
    first, space, rest = script.partition(" ")
    if first and (folder / first).is_file():
        return shlex.quote(str(folder / first)) + space + rest
    return script
