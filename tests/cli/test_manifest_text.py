"""The YAML of `client-lib render`."""

import yaml

from client_lib.cli.commands.submit import manifest_text
from client_lib.spec.wire import Manifest
from server_stub.runtimes.kube.render import masked
from tests.kube.cases import Builder


def test_objects_of_a_cluster_are_a_view_of_which_kubectl_takes_nothing() -> None:
    objects = masked(Builder(spec={"secrets": ["TOKEN"]}).build("train").objects())
    text = manifest_text(Manifest(runtime="kubernetes", objects=objects))
    assert text.startswith("# A view of the objects that a submit creates.")
    assert "`kubectl apply` takes none of it" in text
    # one document without a kind
    assert yaml.safe_load(text) == {"runtime": "kubernetes", "objects": objects}
    assert "value-of-TOKEN" not in text


def test_plans_of_this_machine_stand_alone() -> None:
    text = manifest_text(Manifest(runtime="local", objects=[{"job": "x"}]))
    assert text == "runtime: local\nobjects:\n- job: x"
