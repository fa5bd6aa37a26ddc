"""Decisions by the index of rules, beside what the rules say one by one."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.security.index import RuleIndex
from headrace.broker.security.rights import Operation, Pattern, Permission, Resource
from headrace.broker.security.rules import ANY, Rule, allow, deny

NAMES = ["a", "ab", "abc", "b"]
USERS = ["ann", "bob", "ANONYMOUS"]
HOSTS = ["127.0.0.1", "10.0.0.1"]
RESOURCES = [Resource.TOPIC, Resource.GROUP]

RULES = st.builds(
    Rule,
    st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
    st.sampled_from([ANY, *USERS]),
    st.sampled_from([ANY, *HOSTS]),
    st.sampled_from(list(Operation)),
    st.sampled_from(RESOURCES),
    st.sampled_from(Pattern),
    st.sampled_from([ANY, *NAMES]),
)


def model(rules: list[Rule], user: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
    """All rules, one by one: any that denies, or else any that allows."""
    about = [
        rule
        for rule in rules
        if rule.resource is resource
        and rule.user in (ANY, user)
        and rule.host in (ANY, host)
        and rule.is_for_name(name)
        and rule.is_for_operation(operation)
    ]
    permissions = {rule.permission for rule in about}
    return Permission.DENY not in permissions and Permission.ALLOW in permissions


@given(st.lists(RULES, max_size=12))
def test_the_index_decides_as_all_rules_do(rules: list[Rule]):
    index = RuleIndex(rules)
    for user, host, operation, resource, name in product(USERS, HOSTS, Operation, RESOURCES, NAMES):
        rule = index.decide(user, host, operation, resource, name)
        expected = model(rules, user, host, operation, resource, name)
        assert (rule is not None and rule.permission is Permission.ALLOW) == expected, (rule, user, host, operation)
        assert rule is None or rule in rules


@given(st.lists(RULES, max_size=12))
def test_what_some_resource_allows_is_allowed_of_any(rules: list[Rule]):
    """The other way round it may be wrong in Kafka's way: prefixes that deny can leave no name."""
    index = RuleIndex(rules)
    for user, host, operation in product(USERS, HOSTS, (Operation.READ, Operation.DESCRIBE)):
        if any(model(rules, user, host, operation, Resource.TOPIC, name) for name in [*NAMES, "abcd", "zzz"]):
            assert index.allows_some(user, host, operation, Resource.TOPIC)


def test_a_kind_of_which_nothing_is_allowed():
    index = RuleIndex(
        [allow("ann", Operation.WRITE, Resource.TOPIC, "a"), deny("ann", Operation.WRITE, Resource.TOPIC, ANY)]
    )
    assert not index.allows_some("ann", "h", Operation.WRITE, Resource.TOPIC)
    index = RuleIndex(
        [
            allow("ann", Operation.WRITE, Resource.TOPIC, "ab", Pattern.PREFIXED),
            deny("ann", Operation.WRITE, Resource.TOPIC, "a", Pattern.PREFIXED),
        ]
    )
    assert not index.allows_some("ann", "h", Operation.WRITE, Resource.TOPIC)
    assert not index.allows_some("bob", "h", Operation.WRITE, Resource.TOPIC)


def test_a_right_to_change_is_one_to_see_but_no_denial_to_change_is_one_to_see():
    index = RuleIndex(
        [
            allow("ann", Operation.READ, Resource.TOPIC, "a"),
            allow("bob", Operation.DESCRIBE, Resource.TOPIC, "a"),
            deny("bob", Operation.READ, Resource.TOPIC, "a"),
        ]
    )
    assert index.decide("ann", "h", Operation.DESCRIBE, Resource.TOPIC, "a") is not None
    assert index.decide("ann", "h", Operation.WRITE, Resource.TOPIC, "a") is None
    rule = index.decide("bob", "h", Operation.DESCRIBE, Resource.TOPIC, "a")
    assert rule is not None
    assert rule.permission is Permission.ALLOW


def test_how_a_rule_reads():
    rule = deny("ann", Operation.READ, Resource.TRANSACTIONAL_ID, "pay-", Pattern.PREFIXED, host="10.0.0.1")
    assert str(rule) == "deny ann READ on transactional-id pay-* from 10.0.0.1"
