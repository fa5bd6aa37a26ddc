"""Build the kernels with Cython where a C compiler is there; install them interpreted where it is not.

Everything else about the package is in pyproject.toml. The extensions are `optional`: a failed compilation leaves the
same source to be imported as plain Python.
"""

from pathlib import Path

from setuptools import Extension, setup

KERNELS = sorted(str(path) for path in Path("src/headrace/kernels").glob("*.py") if path.name != "__init__.py")


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    modules = [
        Extension(
            path.removeprefix("src/").removesuffix(".py").replace("/", "."),
            [path],
            optional=True,
            extra_compile_args=["-O2"],
        )
        for path in KERNELS
    ]
    return cythonize(modules, language_level=3, quiet=True, build_dir="build/cython") if modules else []


setup(ext_modules=extensions())
