"""Reads the file of the catalogue, and rejects errors at the start that would fail the first job.

A server keeps a copy of the last valid file, so that an error in a new one does not prevent its
start.
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from client_lib.durable import write_file
from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import parse_yaml
from client_lib.spec.refusals import Place, invalid_request
from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.names import is_free, is_in

T = TypeVar("T")
_log = logging.getLogger(__name__)
EXAMPLE = "docs/catalogue.md has an example"
REFERENCE = "docs/catalogue.md describes all entries"
_ADMITTED = {
    "restricted": {"NET_BIND_SERVICE"},
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline
    "baseline": {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    },
}


def load(path: Path | None) -> ClusterCatalogue:
    """The catalogue in a YAML file. Raises InvalidRequest naming the file, the
    entry and what is wrong in it.
    """
    if path is None:
        raise InvalidRequest(
            "a server for Kubernetes needs a catalogue of instance types: "
            "CLIENT_LIB_SERVER_CATALOGUE names no file",
            hint=EXAMPLE,
        )
    try:
        return read(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the catalogue {path} can't be read: {error}") from error
    except InvalidRequest as error:
        raise InvalidRequest(
            f"the catalogue {path}: {error.message}", hint=error.hint or REFERENCE
        ) from error


def load_or_kept(path: Path | None, kept: Path) -> tuple[ClusterCatalogue, str]:
    """Read the catalogue from a YAML file, and copy the file to `kept`. If the file is not valid,
    read the copy, and return the reason beside it; '': the file was read. Raises InvalidRequest as
    `load`, without a valid copy."""
    try:
        found = load(path)
    except InvalidRequest as error:
        try:
            found = load(kept if path else None)
        except InvalidRequest:
            raise error from None
        since = datetime.fromtimestamp(kept.stat().st_mtime, timezone.utc)
        wrong = error.message.replace("\n", "; ")
        return found, f"{wrong}; the catalogue of {since:%Y-%m-%d %H:%M} UTC is used instead"
    assert path is not None
    try:
        content = path.read_bytes()
        if not kept.exists() or kept.read_bytes() != content:
            write_file(str(kept), content)
    except OSError as error:  # such as a full disk: there is no newer copy
        _log.warning("the catalogue can't be copied to %s: %s", kept, error)
    return found, ""


def read(text: str) -> ClusterCatalogue:
    """The catalogue in YAML. Raises InvalidRequest with a line for each error: the
    entry and what is wrong in it.
    """
    try:
        content = parse_yaml(text, "it")
        if not isinstance(content, dict):
            raise InvalidRequest("it is no table with `instance_types`", hint=EXAMPLE)
        found = ClusterCatalogue.model_validate(content)
    except ValidationError as error:
        raise invalid_request(error, ClusterCatalogue, _line_in(text)) from error
    if wrong := [*_contradictions(found)]:
        raise InvalidRequest("\n".join(wrong))
    return found


def _line_in(text: str) -> Place:
    """A function that returns `line 3: ` for the path of an entry, or for
    the nearest entry around it.
    """
    root = yaml.compose(text, yaml.SafeLoader)
    assert root is not None

    def line(path: Sequence[int | str]) -> str:
        node = root
        mark = root.start_mark
        for part in path:
            if isinstance(node, yaml.MappingNode):
                found = next(
                    ((key, value) for key, value in node.value if key.value == str(part)), None
                )
                mark, node = (found[0].start_mark, found[1]) if found else (mark, node)
            elif (
                isinstance(node, yaml.SequenceNode)
                and isinstance(part, int)
                and part < len(node.value)
            ):
                node = node.value[part]
                mark = node.start_mark
        return f"line {mark.line + 1}: "

    return line


def _contradictions(catalogue: ClusterCatalogue) -> Iterator[str]:
    """Mistakes between entries that are valid alone."""
    volumes = {volume.name: volume for volume in catalogue.volumes}
    always = [volume.always for volume in catalogue.volumes if volume.always is not None]
    names = {
        "instance_types": [each.name for each in catalogue.instance_types],
        "nodes": [each.name for each in catalogue.nodes],
        "volumes": [each.name for each in catalogue.volumes],
    }
    for where, listed in names.items():
        if (twice := _twice(listed)) is not None:
            yield f"{where} lists {twice!r} twice"
    kept = catalogue.checkpoints
    home = catalogue.user.home
    references: list[tuple[str, str | None, str]] = [
        ("defaults.instance_type", catalogue.defaults.instance_type, "instance_types")
    ]
    references += [
        (f"instance type {t.name!r}: node", t.node, "nodes") for t in catalogue.instance_types
    ]
    references += [("checkpoints.volume", kept.volume, "volumes")] if kept else []
    for entry, name, where in references:
        if name is not None and name not in names[where]:
            yield (
                f"{entry}={name!r} is none of its {where} "
                f"({', '.join(names[where]) or 'it has none'})"
            )
    for instance in catalogue.instance_types:
        node = catalogue.node(instance)
        if node is not None and (instance.cpu > node.cpu or instance.memory_gib > node.memory_gib):
            yield f"instance type {instance.name!r} is larger than its node {node.name!r}"
    if (twice := _twice(always)) is not None:
        yield f"two volumes are always mounted at {twice}"
    for path in [*always, *([kept.path] if kept else [])]:
        if not is_free(path):
            yield f"a volume can't be mounted at {path}: that folder is the container's own"
    for_all = [
        each.always
        for each in volumes.values()
        if each.always and each.users is None and not each.read_only
    ]
    if home is not None and not any(is_in(home, path) for path in for_all):
        yield (
            f"user.home={home!r} is on no volume that is always mounted, for all users, and can "
            "be written to"
        )
    if kept and kept.volume in volumes:
        if volumes[kept.volume].read_only:
            yield f"checkpoints.volume={kept.volume!r} is read_only"
        elif volumes[kept.volume].users is not None:
            yield (
                f"checkpoints.volume={kept.volume!r} is for some users alone, and all jobs have "
                "checkpoints"
            )
    level = catalogue.pod_security
    if level == "restricted" and catalogue.user.run_as_user == 0:
        yield "user.run_as_user=0 is root, which pod_security=restricted does not admit"
    for instance in catalogue.instance_types:
        for capability in instance.capabilities if level != "privileged" else ():
            if capability not in _ADMITTED[level]:
                refuses = f"pod_security={level} does not admit the capability {capability}"
                yield f"instance type {instance.name!r}: {refuses}"


def _twice(names: Sequence[T]) -> T | None:
    """The first name that occurs a second time."""
    return next((name for place, name in enumerate(names) if name in names[:place]), None)
