"""Build the kernels with Cython where a C compiler is there; install them interpreted where it is not.

Everything else about the package is in pyproject.toml. A kernel that does not compile is left out, and the same source is
then imported as plain Python: the broker says so in one line of its log.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = sorted(str(path) for path in Path("src/headrace/kernels").glob("*.py") if path.name != "__init__.py")


class BuildKernels(build_ext):
    """Goes on without what does not compile.

    `Extension(optional=True)` covers only some of the ways in which a compiler fails.
    """

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            self.warn(f"{ext.name} stays interpreted, because it did not compile: {error}")


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


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels})
