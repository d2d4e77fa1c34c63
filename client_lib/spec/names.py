"""Names of jobs and groups: the rule for them, and the name of a job whose user gave none. Pure."""

import os
import re

from client_lib.spec.command_line import split_script

NAME_MAX = 50  # Kubernetes: Service names hold <name>-worker-9999 in 63 characters
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # a DNS-1035 label
_INTERPRETERS = re.compile(r"(ba|z|da|k)?sh|python[\d.]*|torchrun|accelerate|env|exec|nohup")


def check_name(name: str) -> None:
    """Raises ValueError unless `name` is a DNS-1035 label of at most 50 characters."""
    if len(name) > NAME_MAX:
        raise ValueError(f"{name!r} has {len(name)} characters; at most {NAME_MAX} are allowed")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a DNS label: lower-case letters, digits and '-', beginning with a letter, "
            "ending with a letter or digit"
        )


def name_for(script: str, suffix: str) -> str:
    """`<script's stem>-<suffix>`, a DNS label: `my Model_v2.py --lr 1` and `x7k2m` give `my-model-v2-x7k2m`."""
    stem = os.path.splitext(os.path.basename(_program(split_script(script))))[0]
    label = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"job-{label}".rstrip("-")
    return f"{label[: NAME_MAX - 1 - len(suffix)].rstrip('-')}-{suffix}"


def _program(words: list[str]) -> str:
    """The first word that is neither an interpreter nor an option of one."""
    named = (w for w in words if not w.startswith("-") and not _INTERPRETERS.fullmatch(os.path.basename(w)))
    found = next(named, words[0])
    return found if re.fullmatch(r"[\w./ -]+", found) else words[0]  # `bash -c '...'` is named bash
