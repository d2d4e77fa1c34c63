"""Images of other projects in the Dockerfile and in k8s/: each is pinned by its digest."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import image
from tests.deploy.conftest import ROOT

OURS = re.compile(r"((localhost|registry\.example\.com)/)?client-lib-(server|demo)\b")
BY_TAG = {
    "ghcr.io/kubeflow/training-v1/training-operator": (
        "the tag has the commit in its name; nobody publishes the digest"
    )
}


def of_dockerfile() -> Iterator[str]:
    """Images that stages start from or copy from."""
    stages: set[str] = set()
    for word, text in image.instructions():
        rest = image.with_defaults(text)
        source = rest.split()[0] if word == "FROM" else rest.partition("--from=")[2].split(" ")[0]
        if word in ("FROM", "COPY") and source and source not in stages:
            yield source
        if word == "FROM" and " AS " in rest:
            stages.add(rest.split()[-1])


def of_manifests() -> Iterator[str]:
    for path in sorted((ROOT / "k8s").rglob("*.yaml")):
        # a template of the operator, whose image is one of its arguments
        if "{{" not in path.read_text():
            for document in yaml.safe_load_all(path.read_text()):
                yield from named(document)


def named(content: Any) -> Iterator[str]:
    """Images of pods and nodes, of kustomizations, of catalogues, and of arguments
    such as `--some-image=NAME`.
    """
    if isinstance(content, list):
        for each in content:
            yield from named(each)
    elif isinstance(content, str) and (found := re.match(r"--[\w-]*image=(.+)", content)):
        yield found[1]
    elif isinstance(content, dict):
        for key, value in content.items():
            if key == "image" and isinstance(value, str):
                yield value
            elif key == "images" and isinstance(value, dict):  # of a catalogue
                yield from filter(None, [value.get("default"), *value.get("aliases", {}).values()])
            elif key == "images":
                yield from map(replaced, value)
            else:
                yield from named(value)


def replaced(entry: dict[str, str]) -> str:
    """The image after the change that a kustomization's entry makes."""
    tag, digest = entry.get("newTag"), entry.get("digest")
    return (
        entry.get("newName", entry["name"])
        + (f":{tag}" if tag else "")
        + (f"@{digest}" if digest else "")
    )


@cache
def foreign() -> set[str]:
    return {each for each in [*of_dockerfile(), *of_manifests()] if not OURS.match(each)}


def test_all_kinds_of_references_are_found() -> None:
    names = {re.split(r"[:@]", each)[0] for each in foreign()}
    python, debian, node = (
        f"docker.io/{name}" for name in ("library/python", "library/debian", "kindest/node")
    )
    assert names == {python, debian, node, "pytorch/pytorch", *BY_TAG}


def test_every_image_of_another_project_has_a_digest() -> None:
    loose = [
        each for each in foreign() if not re.fullmatch(r".+:[\w.-]+@sha256:[0-9a-f]{64}", each)
    ]
    assert {each.split(":")[0] for each in loose} <= set(BY_TAG)


def test_an_image_has_one_digest_in_all_places() -> None:
    pins = [each.partition("@") for each in foreign() if "@" in each]
    assert len({name for name, _, _ in pins}) == len(pins)


def test_the_dockerfile_needs_no_image_for_its_syntax() -> None:
    assert "syntax=" not in Path(ROOT / "Dockerfile").read_text()
