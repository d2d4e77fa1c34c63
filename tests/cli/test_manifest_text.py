"""The YAML of `client-lib render`."""

import yaml

from client_lib.cli.commands.submit import manifest_text
from client_lib.spec.wire import Manifest
from server_stub.runtimes.kube.render import masked
from tests.kube.cases import Builder


def test_objects_of_a_cluster_are_said_to_be_a_view_and_are_yaml() -> None:
    objects = masked(Builder(spec={"secrets": ["TOKEN"]}).build("train").objects())
    text = manifest_text(Manifest(runtime="kubernetes", objects=objects))
    assert text.startswith("# A view of the objects that a submit creates.")
    assert "`kubectl apply` can't run this" in text
    assert list(yaml.safe_load_all(text)) == objects
    assert "value-of-TOKEN" not in text


def test_plans_of_this_machine_stand_alone() -> None:
    assert manifest_text(Manifest(runtime="local", objects=[{"job": "x"}])) == "job: x"
