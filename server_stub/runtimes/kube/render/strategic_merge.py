"""The strategic merge of Kubernetes, for pod templates: what `kubectl patch` does with a part of
one. Pure.

https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
"""

from collections.abc import Mapping, Sequence
from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "env": "name",
    "hostAliases": "ip",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
}
"""Lists whose entries are merged, and the field that tells the entries apart (`patchMergeKey` of
k8s.io/api/core/v1/types.go). All other lists are replaced."""
_DIRECTIVE = "$patch"


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `patch` in it. A field that is None in the patch is removed; `$patch: replace` in
    a map puts it in the place of the other; `$patch: delete` removes the entry of a list."""
    if patch.get(_DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    found = dict(base)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            there = found.get(key)
            found[key] = merged(there if isinstance(there, Mapping) else {}, value)
        elif key in _KEYS and isinstance(value, Sequence):
            found[key] = _merged_list(found.get(key) or [], value, _KEYS[key])
        else:
            found[key] = value
    return found


def _merged_list(base: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    """The entries of `base` in their order, then those that are new."""
    found = list(base)
    for entry in patch:
        if not isinstance(entry, Mapping) or entry.get(key) is None:
            found.append(entry)
            continue
        same = [at for at, each in enumerate(found) if _value(each, key) == entry[key]]
        if entry.get(_DIRECTIVE) == "delete":
            found = [each for at, each in enumerate(found) if at not in same]
        elif same:
            found[same[0]] = merged(found[same[0]], entry)
        else:
            found.append(merged({}, entry))
    return found


def _value(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, Mapping) else None
