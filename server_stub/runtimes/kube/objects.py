"""The objects of one attempt as values, in the order in which they are made, and how they are shown. Pure."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from client_lib.spec.job import MASK

Object = dict[str, Any]
"""A Kubernetes object, as its JSON has it."""


@dataclass(frozen=True)
class Objects:
    """What one attempt is on a cluster."""

    launcher: Object
    """Immutable ConfigMap that all jobs share which use this launcher; named by its hash."""
    plan: Object
    """ConfigMap with plan.json and pod.json."""
    secret: Object = field(repr=False)
    """Secret with the workers' token and the server's CA."""
    environment: Object | None = field(repr=False)
    """Secret whose entries are variables of the ranks; None: there are none."""
    code: Object | None = field(repr=False)
    """ConfigMap with the code, where pods can't fetch it from the server; None: they can, or there is nothing."""
    policy: Object | None
    """NetworkPolicy of a job without internet; None: it may reach what it can."""
    job: Object
    """The PyTorchJob. It owns all others but the launcher, which every job that uses it owns."""

    def owned(self) -> list[Object]:
        """What belongs to this attempt alone, and goes with its PyTorchJob."""
        made = [self.plan, self.secret, self.environment, self.code, self.policy]
        return [each for each in made if each is not None]

    def all(self) -> list[Object]:
        """In the order of creation: a pod never waits for an object that isn't there yet."""
        return [self.launcher, *self.owned(), self.job]


def masked(objects: Objects) -> list[Object]:
    """`objects.all()` as it may be shown: no value of a Secret, and of an archive its digest instead of its bytes."""
    return [_masked(each) for each in objects.all()]


def _masked(shown: Object) -> Object:
    if shown["kind"] == "Secret":
        return shown | {key: dict.fromkeys(shown[key], MASK) for key in ("data", "stringData") if key in shown}
    if "binaryData" in shown:
        return shown | {"binaryData": _described(shown["binaryData"])}
    return shown


def _described(binary: Mapping[str, str]) -> dict[str, str]:
    return {name: _digest(b64decode(text)) for name, text in binary.items()}


def _digest(content: bytes) -> str:
    return f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
