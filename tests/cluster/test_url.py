from __future__ import annotations

import pytest

from headrace.cluster.url import ClusterUrl, parse_cluster_url
from headrace.errors import ConfigError


def test_members_and_name() -> None:
    assert parse_cluster_url("etcd://a:2379,[::1]:2380/main") == ClusterUrl((("a", 2379), ("::1", 2380)), "main", False)
    assert parse_cluster_url("etcds://a:2379/eu-1.x_y").is_tls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "main",
        "http://a:1/x",
        "etcd://a:1",
        "etcd:///x",
        "etcd://a:1/",
        "etcd://a:1/x/y",
        "etcd://a:1/../x",
        "etcd://a/x",
        "etcd://a:0/x",
        "etcd://:1/x",
        "etcd://a:1,,b:1/x",
        "etcd://a:1,a:1/x",
        "etcd://a:1/" + "x" * 65,
        "etcd://::1:1/x",
    ],
)
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=" "):
        parse_cluster_url(text)
