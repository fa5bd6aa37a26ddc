"""How the kernels are built: a stale binary is worse than none, and none must do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

PACKAGE = Path(headrace.__file__).parent
ROOT = PACKAGE.parents[1]
BINARIES = sorted(PACKAGE.rglob("*.so"))
# One kernel with those that it needs, for Cython takes a second for each.
SOME = tuple(f"src/headrace/format/{name}.py" for name in ("records", "faults", "head", "compression"))
REBUILD = "python setup.py build_ext --inplace"


def kernels() -> list[str]:
    """What setup.py lists."""
    setup = ROOT / "setup.py"
    if not setup.exists():
        pytest.skip("an installed package has no setup.py")
    return re.findall(r'^    "(src.*[.]py)",$', setup.read_text(), re.MULTILINE)


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
    compiled = {f"{binary.parent.relative_to(ROOT)}/{binary.name.partition('.')[0]}.py" for binary in BINARIES}
    assert compiled in (set(), set(kernels()))


def test_importing_the_package_loads_no_kernel() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import sys, headrace.format; print('headrace.format.records' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == "False\n"


def test_without_a_c_compiler(tmp_path: Path) -> None:
    others = [f'    "{path}",\n' for path in kernels() if path not in SOME]
    setup = (ROOT / "setup.py").read_text()
    for line in others:
        setup = setup.replace(line, "")
    (tmp_path / "setup.py").write_text(setup)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for path in PACKAGE.rglob("*.py"):
        target = tmp_path / path.relative_to(ROOT)
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
    assert not list(tmp_path.rglob("*.so"))
    program = (
        "import headrace.format as k; from headrace.format import records as r;"
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
    assert ran.stdout == f"{tmp_path}/src/headrace/format/__init__.py False [(0, 1, b'k', b'v', [])]\n"
