from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.topics import check_name
from headrace.doors.nsq.names import is_channel_name, is_ephemeral, is_topic_name, log_name, nsq_name

LETTERS = "abzAZ019._-"
NAMES = st.builds(
    lambda name, ephemeral: name[:54] + "#ephemeral" if ephemeral else name,
    st.text(LETTERS, min_size=1, max_size=64),
    st.booleans(),
)


@given(NAMES.filter(is_topic_name))
def test_every_name_of_nsq_has_one_of_the_log_and_back(name):
    check_name(log_name(name))
    assert nsq_name(log_name(name)) == name


@given(st.text(LETTERS, min_size=1, max_size=80))
def test_no_two_topics_of_the_log_share_a_name(topic):
    seen = nsq_name(topic)
    assert seen is None or log_name(seen) == topic


@pytest.mark.parametrize("name", ["", "#ephemeral", "a b", "ä", "a#eph", "x" * 65, "a\n", "x" * 55 + "#ephemeral"])
def test_what_is_no_name(name):
    assert not is_topic_name(name)
    assert not is_channel_name(name)


def test_the_ending_that_is_kept():
    assert not is_topic_name("x.ephemeral")
    assert not is_topic_name("..")
    assert not is_topic_name("__consumer_offsets")
    assert not is_topic_name("__cluster_metadata")
    assert is_channel_name("x.ephemeral")
    assert log_name("x#ephemeral") == "x.ephemeral"
    assert is_ephemeral("x#ephemeral")
    assert not is_ephemeral("x")


def test_topics_that_are_not_seen():
    assert nsq_name("__consumer_offsets") is None
    assert nsq_name("x" * 65) is None
