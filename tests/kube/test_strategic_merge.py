"""Parts of a pod template, merged as `kubectl patch` merges them."""

from typing import Any

from hypothesis import given, strategies as st

from server_stub.runtimes.kube.render.strategic_merge import merged

NAMES = st.sampled_from("abc")
ENTRIES = st.lists(
    st.fixed_dictionaries({"name": NAMES}, optional={"size": st.integers(0, 2)}),
    unique_by=lambda entry: str(entry["name"]),
)
PARTS = st.recursive(
    st.integers(0, 3),
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner), st.fixed_dictionaries({"volumes": ENTRIES})
    ),
    max_leaves=6,
)
MAPS = st.dictionaries(NAMES, PARTS)


@given(base=MAPS, patch=MAPS)
def test_a_patch_that_is_merged_twice_changes_nothing_the_second_time(
    base: dict[str, Any], patch: dict[str, Any]
) -> None:
    once = merged(base, patch)
    assert merged(once, patch) == once
    assert merged(base, {}) == base
    assert merged({}, patch) == patch


@given(base=ENTRIES, patch=ENTRIES)
def test_entries_are_told_apart_by_their_key(
    base: list[dict[str, Any]], patch: list[dict[str, Any]]
) -> None:
    found = merged({"volumes": base}, {"volumes": patch})["volumes"]
    names = [entry["name"] for entry in found]
    assert len(names) == len(set(names))
    assert names[: len(base)] == [entry["name"] for entry in base]
    expected = {entry["name"]: entry for entry in base}
    for entry in patch:
        expected[entry["name"]] = expected.get(entry["name"], {}) | entry
    assert {entry["name"]: entry for entry in found} == expected


def test_lists_without_a_key_are_replaced_and_what_is_none_is_removed() -> None:
    base = {
        "tolerations": [{"key": "a"}],
        "nodeSelector": {"zone": "x", "disk": "ssd"},
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "data"}],
    }
    patch = {
        "tolerations": [{"key": "b"}],
        "nodeSelector": {"zone": None, "type": "gpu"},
        "volumes": [
            {"name": "tmp", "emptyDir": None, "hostPath": {"path": "/x"}},
            {"name": "data", "$patch": "delete"},
        ],
    }
    assert merged(base, patch) == {
        "tolerations": [{"key": "b"}],
        "nodeSelector": {"disk": "ssd", "type": "gpu"},
        "volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}],
    }
    assert merged(base, {"nodeSelector": {"$patch": "replace", "a": "b"}})["nodeSelector"] == {
        "a": "b"
    }
