"""Rules and roles: added, removed, listed and explained; what follows at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.security.test_rules import HOSTS, NAMES, RESOURCES, RULES, USERS

from headrace.broker.broker import Broker
from headrace.broker.security import OWN, Operation, Resource, Session
from headrace.broker.security.filters import PatternFilter, RuleFilter
from headrace.broker.security.index import RuleIndex
from headrace.broker.security.rights import CLUSTER_NAME, OPERATIONS, Pattern, Permission
from headrace.broker.security.roles import ROLES, Grant
from headrace.broker.security.rules import ANY, Rule, allow, deny
from headrace.errors import InvalidRule, NotAuthorized, TooManyIdentities

Starting = Callable[..., Awaitable[Broker]]
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
TOPIC, GROUP = Resource.TOPIC, Resource.GROUP
ANN = Session(user="ann", host="127.0.0.1")


def texts(rules: Iterable[Rule]) -> list[str]:
    return sorted(map(str, rules))


@given(st.lists(RULES, max_size=12), st.data())
def test_rules_come_and_go_in_any_order(rules: list[Rule], data: st.DataObject):
    index = RuleIndex(rules)
    left = list(rules)
    for rule in data.draw(st.permutations(rules)):
        if data.draw(st.booleans()):
            index.discard(rule)
            left.remove(rule)
    plain = RuleIndex(left)
    assert index.has_hosts == plain.has_hosts
    for user in USERS:
        for operation in (READ, DESCRIBE):
            for resource in RESOURCES:
                for name in NAMES:
                    one, other = (each.decide(user, HOSTS[0], operation, resource, name) for each in (index, plain))
                    assert (one is None) == (other is None)
                    assert one is None or other is None or one.permission == other.permission
    for rule in left:
        index.discard(rule)
    assert index._by_user == {}
    assert not index.has_hosts


def test_what_filters_mean():
    literal = allow("ann", READ, TOPIC, "ab")
    wild = allow(ANY, READ, TOPIC, ANY)
    prefixed = deny("ann", Operation.ALL, TOPIC, "a", Pattern.PREFIXED, host="10.0.0.1")
    group = allow("bob", READ, GROUP, "ab")
    rules = [literal, wild, prefixed, group]
    match = PatternFilter.MATCH
    for wanted, found in (
        (RuleFilter(), rules),
        (RuleFilter(name="ab"), [literal, group]),
        (RuleFilter(name="a"), [prefixed]),
        (RuleFilter(name="a", pattern=PatternFilter.LITERAL), []),
        (RuleFilter(name="a", pattern=PatternFilter.PREFIXED), [prefixed]),
        (RuleFilter(TOPIC, "ab", match), [literal, wild, prefixed]),
        (RuleFilter(TOPIC, "b", match), [wild]),
        (RuleFilter(TOPIC, None, match), [literal, wild, prefixed]),
        (RuleFilter(TOPIC, "*"), [wild]),
        (RuleFilter(pattern=PatternFilter.LITERAL), [literal, wild, group]),
        (RuleFilter(user=ANY), [wild]),
        (RuleFilter(user="ann"), [literal, prefixed]),
        (RuleFilter(host=ANY), [literal, wild, group]),
        (RuleFilter(host="10.0.0.1"), [prefixed]),
        (RuleFilter(operation=Operation.ALL), [prefixed]),
        (RuleFilter(operation=READ), [literal, wild, group]),
        (RuleFilter(permission=Permission.DENY), [prefixed]),
        (RuleFilter(resource=GROUP), [group]),
    ):
        assert [each for each in rules if wanted.fits(each)] == found, wanted


async def test_rules_are_there_after_a_start(start_broker: Starting):
    broker = await start_broker(authorization="on")
    grants = broker.security.grants
    rules = [allow("ann", READ, TOPIC, "t"), deny("ann", READ, TOPIC, "t.", Pattern.PREFIXED, host="10.0.0.1")]
    await grants.add_rules(OWN, rules)
    end = broker.topics.existing("__security").partitions[0].end
    await grants.add_rules(OWN, rules)
    assert broker.topics.existing("__security").partitions[0].end == end
    broker = await start_broker(authorization="on")
    grants = broker.security.grants
    assert texts(grants.find_rules(OWN, RuleFilter())) == texts(rules)
    assert broker.security.allows(ANN, READ, TOPIC, "t")
    both = [RuleFilter(user="ann"), RuleFilter(permission=Permission.DENY), RuleFilter(name="none")]
    assert [texts(found) for found in await grants.remove_rules(OWN, both)] == [texts(rules), texts(rules[1:]), []]
    assert not broker.security.allows(ANN, READ, TOPIC, "t")
    broker = await start_broker(authorization="on")
    assert broker.security.grants.find_rules(OWN, RuleFilter()) == []


async def test_a_change_ends_what_was_decided_before(start_broker: Starting):
    broker = await start_broker(authorization="on")
    grants = broker.security.grants
    topic = await broker.topics.create("t", 1)
    await grants.add_rules(OWN, [allow(user, WRITE, TOPIC, "t") for user in ("ann", "bob", "ANONYMOUS")])
    sessions = {user: Session(user=user, host="127.0.0.1") for user in ("ann", "bob", "")}

    def admissions() -> dict[str, object]:
        return {user: broker.publisher.admit(session, topic) for user, session in sessions.items()}

    before = admissions()
    await grants.remove_rules(OWN, [RuleFilter(user="ann")])
    assert [each.valid for each in before.values()] == [False, True, True]  # type: ignore[attr-defined]
    with pytest.raises(NotAuthorized):
        broker.publisher.admit(sessions["ann"], topic)
    await grants.grant_role(OWN, Grant("ann", "producer", "t"))
    before = admissions()
    await grants.remove_rules(OWN, [RuleFilter(user="ANONYMOUS")])
    assert [each.valid for each in before.values()] == [True, True, False]  # type: ignore[attr-defined]
    await grants.add_rules(OWN, [deny(ANY, WRITE, TOPIC, "t")])
    assert not any(each.valid for each in before.values())  # type: ignore[attr-defined]


async def test_what_is_no_rule(start_broker: Starting):
    broker = await start_broker(rules_max=3)
    grants = broker.security.grants
    for rule in (
        allow("", READ, TOPIC, "t"),
        allow("ann", READ, TOPIC, ""),
        allow("ann", READ, TOPIC, "t\0"),
        allow("ann", READ, TOPIC, "t", host=""),
        allow("ann", READ, TOPIC, "t" * 1_025),
        allow("ann", Operation.CLUSTER_ACTION, TOPIC, "t"),
        allow("ann", DESCRIBE, Resource.CLUSTER, "other"),
        allow("ann", DESCRIBE, Resource.CLUSTER, CLUSTER_NAME, Pattern.PREFIXED),
    ):
        with pytest.raises(InvalidRule):
            await grants.add_rules(OWN, [rule])
    await grants.add_rules(OWN, [allow("ann", READ, TOPIC, name) for name in "abc"])
    with pytest.raises(TooManyIdentities, match="rules_max"):
        await grants.add_rules(OWN, [allow("ann", READ, TOPIC, "d")])
    await grants.remove_rules(OWN, [RuleFilter(name="a")])
    with pytest.raises(TooManyIdentities):
        await grants.grant_role(OWN, Grant("ann", "viewer"))
    await grants.add_rules(OWN, [allow("ann", READ, TOPIC, "d")])


async def test_roles(start_broker: Starting):
    broker = await start_broker(authorization="on")
    grants = broker.security.grants
    for grant in (
        Grant("vic", "viewer"),
        Grant("olga", "operator"),
        Grant("adam", "admin"),
        Grant("pam", "producer", "orders*"),
        Grant("carl", "consumer", "orders", "billing"),
    ):
        await grants.grant_role(OWN, grant)
    broker = await start_broker(authorization="on")
    security, grants = broker.security, broker.security.grants
    assert [str(each) for each in grants.roles(OWN)] == [
        *("admin", "consumer of orders in billing", "operator", "producer of orders*", "viewer")
    ]
    queue, cluster = Resource.QUEUE, Resource.CLUSTER

    def may(user: str, operation: Operation, resource: Resource, name: str) -> bool:
        return security.allows(Session(user=user), operation, resource, name)

    for user, allowed, refused in (
        (
            "vic",
            [(DESCRIBE, TOPIC, "t"), (DESCRIBE, cluster, CLUSTER_NAME), (Operation.DESCRIBE_CONFIGS, TOPIC, "t")],
            [(READ, TOPIC, "t"), (WRITE, TOPIC, "t"), (Operation.ALTER, cluster, CLUSTER_NAME), (READ, queue, "t/q")],
        ),
        (
            "olga",
            [
                (Operation.DELETE, TOPIC, "t"),
                (Operation.DELETE, queue, "t/q"),
                (Operation.CREATE, cluster, CLUSTER_NAME),
            ],
            [(Operation.ALTER, cluster, CLUSTER_NAME), (Operation.CREATE_TOKENS, Resource.USER, "olga")],
        ),
        ("adam", [(each, kind, "x") for kind in Resource for each in OPERATIONS[kind]], [(READ, TOPIC, "__security")]),
        (
            "pam",
            [(WRITE, TOPIC, "orders.eu"), (Operation.CREATE, TOPIC, "orders"), (DESCRIBE, TOPIC, "orders")],
            [(READ, TOPIC, "orders"), (WRITE, TOPIC, "order"), (Operation.DELETE, TOPIC, "orders")],
        ),
        (
            "carl",
            [(READ, TOPIC, "orders"), (READ, GROUP, "billing"), (READ, queue, "orders/q")],
            [
                (READ, TOPIC, "orders.eu"),
                (READ, GROUP, "other"),
                (READ, queue, "orders.eu/q"),
                (WRITE, TOPIC, "orders"),
            ],
        ),
    ):
        for right in allowed:
            assert may(user, *right), (user, right)
        for right in refused:
            assert not may(user, *right), (user, right)
    # Kafka's tools see rules alone.
    assert grants.find_rules(OWN, RuleFilter()) == []
    await grants.revoke_role(OWN, Grant("carl", "consumer", "orders", "billing"))
    assert not may("carl", READ, TOPIC, "orders")
    with pytest.raises(InvalidRule, match="'carl' does not have the role consumer of orders"):
        await grants.revoke_role(OWN, Grant("carl", "consumer", "orders"))
    for wrong in (
        Grant("ann", "king"),
        Grant("ann", "viewer", "t"),
        Grant("ann", "producer", "t", "g"),
        Grant("", "admin"),
    ):
        with pytest.raises(InvalidRule):
            await grants.grant_role(OWN, wrong)
    assert set(ROLES) == {"viewer", "operator", "admin", "producer", "consumer"}


async def test_why(start_broker: Starting):
    broker = await start_broker(authorization="on", super_users="root")
    grants = broker.security.grants
    await grants.add_rules(OWN, [deny("ann", WRITE, TOPIC, "t")])
    await grants.grant_role(OWN, Grant("ann", "producer"))

    def explain(user: str, operation: Operation, name: str) -> tuple[bool, str]:
        found = grants.explain(OWN, user, "127.0.0.1", operation, TOPIC, name)
        return found.is_allowed, found.why

    assert explain("root", READ, "t") == (True, "root is a super user (super_users)")
    assert explain("ann", WRITE, "t") == (False, "by the rule: deny ann WRITE on topic t")
    assert explain("ann", WRITE, "u") == (True, "by the rule: allow ann WRITE on topic * (role producer of *)")
    assert explain("ann", READ, "t") == (False, "no rule allows ann READ on the topic 't'")
    assert explain("root", READ, "__security")[0] is False


async def test_what_a_session_may(start_broker: Starting):
    broker = await start_broker(authorization="on")
    grants = broker.security.grants
    for call in (
        lambda: grants.add_rules(ANN, [allow("ann", READ, TOPIC, "t")]),
        lambda: grants.remove_rules(ANN, [RuleFilter()]),
        lambda: grants.grant_role(ANN, Grant("ann", "admin")),
        lambda: grants.revoke_role(ANN, Grant("ann", "admin")),
    ):
        with pytest.raises(NotAuthorized, match="takes the right ALTER on the cluster 'kafka-cluster'"):
            await call()
    for listing in (
        lambda: grants.find_rules(ANN, RuleFilter()),
        lambda: grants.roles(ANN),
        lambda: grants.explain(ANN, "ann", "h", READ, TOPIC, "t"),
    ):
        with pytest.raises(NotAuthorized, match="DESCRIBE"):
            listing()
