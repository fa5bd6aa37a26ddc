"""Kernels: the loops over single records, each over a whole batch, from one source compiled or interpreted."""

from __future__ import annotations


def compiled() -> bool:
    """Whether the kernels run as compiled code; interpreted ones give the same answers a hundred times slower."""
    import headrace.kernels.records as records

    return not (records.__file__ or "").endswith(".py")
