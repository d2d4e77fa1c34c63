"""The name of a job whose user gave none: `<script's stem>-<5 characters>`, a DNS label. Pure but for `draw`."""

from __future__ import annotations

import os
import re
import secrets
import string
import uuid

from client_lib.spec.command_line import split_script
from client_lib.spec.job import NAME_MAX, JobSpec

SUFFIX = 5  # 36^5: one user's names of one script meet once in some thousand jobs, and then the server refuses
_ALPHABET = string.ascii_lowercase + string.digits
_INTERPRETERS = re.compile(r"(ba|z|da|k)?sh|python[\d.]*|torchrun|accelerate|env|exec|nohup")


def draw(spec: JobSpec) -> str:
    """A new name. A call that names a region is the platform's, whose tools expect names of its own shape."""
    if spec.region:
        return f"lm-mpi-job-{uuid.uuid4()}"
    return name_for(spec.script, "".join(secrets.choice(_ALPHABET) for _ in range(SUFFIX)))


def name_for(script: str, suffix: str) -> str:
    """`my Model_v2.py --lr 1` and `x7k2m` give `my-model-v2-x7k2m`."""
    stem = os.path.splitext(os.path.basename(_what_runs(split_script(script))))[0]
    label = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"job-{label}".rstrip("-")
    return f"{label[: NAME_MAX - 1 - len(suffix)].rstrip('-')}-{suffix}"


def _what_runs(words: list[str]) -> str:
    """The first word that is no interpreter and none of its options."""
    named = (w for w in words if not w.startswith("-") and not _INTERPRETERS.fullmatch(os.path.basename(w)))
    found = next(named, words[0])
    return found if re.fullmatch(r"[\w./ -]+", found) else words[0]  # `bash -c '...'` is a bash
