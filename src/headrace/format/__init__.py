"""The record batch, version 2, as the wire, the disk and the replicas have it: header, records, markers, compression.

Most modules here are kernels: loops over the records of a whole batch, from one source compiled or interpreted. Those
that serve one part of the broker lie beside it; `setup.py` lists all of them.
"""

from __future__ import annotations


def compiled() -> bool:
    """Whether the kernels run as compiled code; interpreted ones give the same answers a hundred times slower."""
    import headrace.format.records as records

    return not (records.__file__ or "").endswith(".py")
