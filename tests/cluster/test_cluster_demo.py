"""`make cluster-demo`, whole: what it shows is what it checks."""

from __future__ import annotations

import pytest
from bench.peers import Missing
from bench.peers.etcd import find

from examples.cluster_demo.__main__ import main


@pytest.mark.etcd
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_check_of_the_demo_holds() -> None:
    try:
        find()
    except Missing as reason:
        pytest.skip(str(reason))
    assert main() == 0
