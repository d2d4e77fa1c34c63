"""Names of the options of a job. Needs the standard library only: a report names an option without loading all."""

from __future__ import annotations

NAMES: dict[str, tuple[str, ...]] = {
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
    return NAMES.get(field, ("--" + field.replace("_", "-"),))
