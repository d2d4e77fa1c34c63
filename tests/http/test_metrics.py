"""The names that the alerts of k8s/components/monitoring and docs/kubernetes.md use,
against an answer of a server.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from client_lib.spec import paths
from client_lib.spec.states import State
from tests.http.conftest import Api

ROOT = Path(__file__).parents[2]
RULES = ROOT / "k8s" / "components" / "monitoring" / "alerts.yaml"
OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "namespace"}
MATCHERS = re.compile(r"\{[^}]*\}|\[\w+\]|\b(?:by|on|ignoring) \([\w, ]*\)")
OPERATORS = {"and", "or", "unless"}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@pytest.fixture
def samples(ann: Api) -> list[Sample]:
    ann("GET", paths.INFO)
    text = ann("GET", paths.METRICS).text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_every_metric_and_label_of_an_alert_is_in_the_answer(samples: list[Sample]) -> None:
    names, labels = (
        {each.name for each in samples},
        {label for each in samples for label in each.labels},
    )
    assert len(alerts()) == 5
    for alert in alerts():
        asked = (
            set(re.findall(r"\b[a-z_]+\b(?!\s*\()", MATCHERS.sub("", alert["expr"]))) - OPERATORS
        )
        assert asked, alert["alert"]
        assert asked <= names | OF_PROMETHEUS, alert["alert"]
        assert set(re.findall(r"(\w+)=~?\"", alert["expr"])) <= labels | LABELS_OF_PROMETHEUS, (
            alert["alert"]
        )
        assert set(re.findall(r'state="(\w+)"', alert["expr"])) <= set(State)


def test_every_alert_says_what_to_do_and_is_in_the_documents() -> None:
    guide = (ROOT / "docs" / "kubernetes.md").read_text()
    told = set(re.findall(r"`(ClientLib\w+)`", guide))
    assert told == {alert["alert"] for alert in alerts()}
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == set(alert["annotations"])


def test_the_documents_name_every_metric_of_the_server(samples: list[Sample]) -> None:
    guide = (ROOT / "docs" / "kubernetes.md").read_text()
    told = set(re.findall(r"^\| `(client_lib_\w+)`", guide, re.MULTILINE))
    ours = {each.name for each in samples if each.name.startswith("client_lib_")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in ours} <= told
