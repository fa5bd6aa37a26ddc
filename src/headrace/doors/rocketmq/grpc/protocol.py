"""RocketMQ's published protos, as Python modules: where they come from, and what stands for them in types.

The package `rocketmq-python-client` has them generated. Its other modules are a client, which makes a folder for logs
in the user's home as soon as any of it is imported. So the two modules of the protos are imported without it: under a
package of the same name that is empty, and only for the time of the import. An application in the same process may
import the client itself, before or after; the definitions are the same to both.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "rocketmq"
_PROTOS = f"{_PACKAGE}.grpc_protocol"

# A message of the protos: its classes are made at run time.
Proto = Any


def _import_protos() -> tuple[ModuleType, ModuleType]:
    """The modules of the definitions and of the service."""
    names = (f"{_PROTOS}.definition_pb2", f"{_PROTOS}.service_pb2")
    if _PACKAGE in sys.modules:
        definition, service = map(import_module, names)
        return definition, service
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"there is no package {_PACKAGE} with the protos: install headrace[rocketmq-grpc]")
    folder = Path(found.submodule_search_locations[0])
    try:
        for name, path in ((_PACKAGE, folder), (_PROTOS, folder / "grpc_protocol")):
            empty = sys.modules[name] = ModuleType(name)
            empty.__path__ = [str(path)]
        definition, service = map(import_module, names)
    finally:
        for name in (_PACKAGE, _PROTOS, *names):
            sys.modules.pop(name, None)
    return definition, service


definition, service = _import_protos()
Code: Any = definition.Code
