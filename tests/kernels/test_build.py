"""How the kernels are built: a stale binary is worse than none, and none must do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import kernels

FOLDER = Path(kernels.__file__).parent
# Not a kernel, but compiled with them.
WRITER = FOLDER.parent / "ground" / "writer.py"
BINARIES = sorted([*FOLDER.glob("*.so"), *WRITER.parent.glob("*.so")])
# One kernel with those that it needs, for Cython takes a second for each.
SOME = ("__init__.py", "records.py", "faults.py", "head.py", "compression.py")
REBUILD = "python setup.py build_ext --inplace"


def sources_of(binary: Path) -> list[Path]:
    """What a binary is made from: its module, and the declarations beside that, if there are any."""
    name = binary.name.partition(".")[0]
    return [path for path in (binary.with_name(name + suffix) for suffix in (".py", ".pxd")) if path.exists()]


@pytest.mark.parametrize("binary", BINARIES, ids=lambda path: path.name.partition(".")[0])
def test_no_binary_is_older_than_its_source(binary: Path) -> None:
    sources = sources_of(binary)
    assert sources, f"{binary.name} has no source any more: delete it"
    for source in sources:
        assert binary.stat().st_mtime >= source.stat().st_mtime, f"{binary.name} is stale: run {REBUILD}"


def test_all_is_compiled_or_nothing_is() -> None:
    """Where one of them does not compile, the installation goes on without it: here that would go unnoticed."""
    compiled = {binary.name.partition(".")[0] for binary in BINARIES}
    meant = {path.stem for path in [*FOLDER.glob("*.py"), WRITER] if path.name != "__init__.py"}
    assert compiled in (set(), meant)


def test_importing_the_package_loads_no_kernel() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import sys, headrace.kernels; print('headrace.kernels.records' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == "False\n"


def test_without_a_c_compiler(tmp_path: Path) -> None:
    root = FOLDER.parents[2]
    if not (root / "setup.py").exists():
        pytest.skip("an installed package has no setup.py")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((root / name).read_bytes())
    copied = tmp_path / "src/headrace/kernels"
    for path in FOLDER.parent.rglob("*.py"):
        if path.parent == FOLDER and path.name not in SOME:
            continue
        target = tmp_path / "src/headrace" / path.relative_to(FOLDER.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    environment = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false", "HEADRACE_KERNELS": ""}
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        timeout=100,
    )
    assert not list(copied.glob("*.so"))
    program = (
        "import headrace.kernels as k; from headrace.kernels import records as r;"
        "print(k.__file__, k.compiled(), r.parse(r.build([(1, b'k', b'v', [])]), 99))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == f"{copied}/__init__.py False [(0, 1, b'k', b'v', [])]\n"
