"""What a cluster offers: instance types, images, volumes and policies, from an operator's YAML file.

Pure but for `load`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Catalogue(BaseModel):
    """The file. Strict."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def load(path: Path, *, by_pattern: bool) -> Catalogue:
    """The catalogue in a YAML file. Raises InvalidRequest naming the file, the entry and what is wrong in it."""
    raise NotImplementedError
