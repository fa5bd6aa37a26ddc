"""RocketMQ's names of topics, and the log's.

RocketMQ's names have `%` and `|`, which the log's (Kafka's) cannot hold, and no `.`: so `%` is the log's `.`. A retry
topic `%RETRY%billing` is `.RETRY.billing` there, `orders` of the namespace `shop` (`shop%orders`) is `shop.orders`, and
the log's `orders.v1` is RocketMQ's `orders%v1`. The rare `|` is `.7C.`; a name that would not come back as it was
(`%7C%` in it) is refused, so the mapping is one to one. Groups keep their names: the log takes any.
"""

from __future__ import annotations

import re
from functools import lru_cache

from headrace.broker.internal import is_protected
from headrace.errors import InvalidTopic

NAME_MAX = 127
# Of a retry topic, whose group may have a long name already.
RETRY_NAME_MAX = 249
RETRY = "%RETRY%"
DEAD = "%DLQ%"
# Not stored: the topic whose route a producer takes for one that is to be made.
DEFAULT_TOPIC = "TBW102"
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_PIPE = ".7C."


@lru_cache(maxsize=10_000)
def log_name(topic: str) -> str:
    """The log's name of a topic. Raises InvalidTopic."""
    name = topic.replace("%", ".").replace("|", _PIPE)
    longest = RETRY_NAME_MAX if topic.startswith((RETRY, DEAD)) else NAME_MAX
    if not _LEGAL.match(topic) or len(topic) > longest or topic == DEFAULT_TOPIC or _rocketmq_name(name) != topic:
        raise InvalidTopic(
            f"{topic[:40]!r} is not a topic name: it has 1 to {longest} ASCII letters, digits, '%', '|', '-' and '_' "
            f"and is not {DEFAULT_TOPIC}"
        )
    if is_protected(name):
        raise InvalidTopic(f"'{topic}' is the broker's own topic. Choose another topic.")
    return name


@lru_cache(maxsize=10_000)
def rocketmq_name(name: str) -> str | None:
    """RocketMQ's name of the log's topic, or None where it is not to be seen."""
    topic = _rocketmq_name(name)
    try:
        return topic if log_name(topic) == name else None
    except InvalidTopic:
        return None


def _rocketmq_name(name: str) -> str:
    return name.replace(_PIPE, "|").replace(".", "%")


def reply_topic(cluster: str) -> str:
    """The topic to which consumers address the replies to requests; the broker passes them on and stores none."""
    return f"{cluster}_REPLY_TOPIC"


def retry_topic(group: str) -> str:
    """The topic from which a group gets messages again, by RocketMQ's name."""
    return RETRY + group


def dead_letter_topic(group: str) -> str:
    """The topic of the messages that a group could not consume, by RocketMQ's name."""
    return DEAD + group
