"""Build the kernels with Cython where a C compiler is there; install them interpreted where it is not.

Everything else about the package is in pyproject.toml. The extensions are `optional`: where one does not compile, the
same source is imported as plain Python, and the broker says so in one line of its log.

`make install` compiles them with `setup.py build_ext --inplace` while pip brings everything else, and tells the build
that pip runs so by HEADRACE_KERNELS=apart.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

CORES = os.cpu_count() or 1
KERNELS = sorted(str(path) for path in Path("src/headrace/kernels").glob("*.py") if path.name != "__init__.py")
# Not a kernel, but of use only where it is compiled.
WRITER = "src/headrace/ground/writer.py"


def extensions() -> list[Extension]:
    if os.environ.get("HEADRACE_KERNELS") == "apart":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    # Python's own flags ask for debug symbols, on which the compiler would spend a third of its time, and for warnings,
    # which are about Cython's C and not about what stands here.
    flags = ["-O2", "-g0", "-w"]
    modules = [
        Extension(path.removeprefix("src/").removesuffix(".py").replace("/", "."), [path], extra_compile_args=flags)
        for path in [*KERNELS, WRITER]
    ]
    built: list[Extension] = cythonize(
        modules, language_level=3, quiet=True, build_dir="build/cython", nthreads=CORES if CORES > 1 else 0
    )
    for extension in built:
        # Set here, because cythonize makes new extensions without it.
        extension.optional = True
    return built


setup(ext_modules=extensions(), options={"build_ext": {"parallel": CORES}})
