"""Records are read strictly, with the field that is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from uuid import UUID

import pytest

from headrace.cluster.changes import elect, new_group
from headrace.cluster.errors import RecordInvalid
from headrace.cluster.records import (
    Cluster,
    Incarnation,
    Keys,
    Member,
    Node,
    parse_cluster,
    parse_group,
    parse_member,
    parse_node,
)
from headrace.cluster.versions import FEATURE_LEVEL

ID = str(UUID(int=1))
OTHER = str(UUID(int=2))
GROUP = elect(new_group([1, 2, 3]), Incarnation(1, ID, 1), [])
NODE = Node(ID, 3, "main", "eu-1a", {"kafka": "a:9092", "peer": "a:9100"}, "b", 1, 2)


def test_records_come_back_as_they_were() -> None:
    assert parse_cluster(Cluster(ID).encode(), "k") == Cluster(ID)
    assert parse_member(Member(ID, 3).encode(), "k") == Member(ID, 3)
    assert parse_group(GROUP.encode(), "k") == GROUP
    assert parse_node(NODE.encode(), "k") == NODE


def test_keys() -> None:
    keys = Keys("main")
    assert (keys.prefix, keys.cluster) == ("/headrace/main/", "/headrace/main/cluster")
    assert (keys.member(1), keys.group("g"), keys.node(2)) == (
        "/headrace/main/members/1",
        "/headrace/main/groups/g",
        "/headrace/main/nodes/2",
    )


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"null", b'"x"', b"{"])
def test_what_is_no_object_is_refused(value: bytes) -> None:
    with pytest.raises(RecordInvalid, match="etcd's record k is not a JSON object"):
        parse_group(value, "k")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("version", 0, r"version must be a whole number of 1 to .* \(got 0\)"),
        ("version", True, "version must be a whole number"),
        ("epoch", -1, "epoch must be"),
        ("leader", {"node": 1}, "leader must be null or an object of node, directory_id and starts"),
        ("leader", {"node": -1, "directory_id": ID, "starts": 1}, "leader must be a whole number"),
        ("isr", ID, "isr must be a list"),
        ("isr", [ID, ID], "isr must be a list without repetitions"),
        ("isr", ["x"], "isr must be a UUID"),
        ("isr", [ID.upper().replace("0", "A")], "isr must be a UUID"),
        ("replicas", ["1"], "replicas must be a whole number"),
        ("transfer_to", "2", "transfer_to must be"),
        ("min_isr", 0, "min_isr must be"),
        ("unclean", "no", "unclean must be true or false"),
        ("isr", [OTHER], "contradicts itself: the leader is not in the ISR"),
        ("elr", [ID], "contradicts itself: the ISR and the ELR have a member in common"),
        ("min_isr", 1, ""),
        ("replicas", [2, 3], "contradicts itself: the leader is not a replica"),
        ("replicas", [], "contradicts itself"),
        ("epoch", 0, "contradicts itself: there is a leader before the first election"),
        ("adding", [9], "contradicts itself: what is added or removed is not among the replicas"),
        ("transfer_to", 9, "contradicts itself: the node that is to lead next is not a replica"),
        ("colour", "red", "has a field that this version does not know .'colour'.. Use a newer Headrace"),
    ],
)
def test_a_field_that_is_wrong_is_named(field: str, value: Any, said: str) -> None:
    record = json.dumps({**asdict(GROUP), field: value}).encode()
    if not said:
        parse_group(record, "k")
        return
    with pytest.raises(RecordInvalid, match=said):
        parse_group(record, "k")


def test_an_elr_beside_a_large_isr_and_a_double_role_are_contradictions() -> None:
    for changed, said in (
        ({"elr": [OTHER], "min_isr": 1}, "the ELR has members although the ISR has enough"),
        ({"adding": [2], "removing": [2]}, "a replica is added and removed"),
        ({"epoch": 0, "leader": None}, "in sync before the first election"),
    ):
        with pytest.raises(RecordInvalid, match=said):
            parse_group(json.dumps({**asdict(GROUP), **changed}).encode(), "k")


@pytest.mark.parametrize("field", asdict(GROUP))
def test_a_field_that_is_missing_is_named(field: str) -> None:
    record = {name: value for name, value in asdict(GROUP).items() if name != field}
    with pytest.raises(RecordInvalid, match=f"has no field '{field}'"):
        parse_group(json.dumps(record).encode(), "k")


def test_a_newer_feature_level_is_refused() -> None:
    with pytest.raises(RecordInvalid, match="Use a newer Headrace"):
        parse_cluster(Cluster(ID, FEATURE_LEVEL + 1).encode(), "k")
    with pytest.raises(RecordInvalid, match="addresses must be an object of texts"):
        parse_node(json.dumps({**asdict(NODE), "addresses": {"kafka": 1}}).encode(), "k")
