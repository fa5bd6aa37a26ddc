"""What goes wrong between a simulated etcd and its clients, beside what machines and links do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EtcdFaults:
    """The chances of what can go wrong with one request, and with one event of a watch."""

    request_lost: float = 0.0
    """It is never carried out, and gets no answer."""
    answer_lost: float = 0.0
    """It is carried out, and gets no answer."""
    late: float = 0.0
    """It is carried out seconds later, whether or not its client still waits."""
    late_s: float = 3.0
    """On average."""
    only_transactions: bool = False
    """Whether other requests are spared, so that leases live on."""
    watch_hang: float = 0.0
    """The watch stays open, and nothing comes any more."""


NO_FAULTS = EtcdFaults()
