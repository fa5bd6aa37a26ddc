"""Build the kernels with Cython where a C compiler is there; install them interpreted where it is not.

Everything else about the package is in pyproject.toml. The extensions are `optional`: where one does not compile, the
same source is imported as plain Python, and the broker says so in one line of its log.

`make install` compiles them with `setup.py build_ext --inplace` while pip brings everything else, and tells the build
that pip runs so by HEADRACE_KERNELS=apart.
"""

import os

from setuptools import Extension, setup

CORES = os.cpu_count() or 1
# The per-record loops, each beside what it serves: this list alone says what is compiled.
KERNELS = [
    # Not a kernel, but of use only where it is compiled.
    "src/headrace/runtime/writer.py",
    "src/headrace/format/aborted.py",
    "src/headrace/format/compression.py",
    "src/headrace/format/delay.py",
    "src/headrace/format/faults.py",
    "src/headrace/format/head.py",
    "src/headrace/format/message_id.py",
    "src/headrace/format/partitioning.py",
    "src/headrace/format/records.py",
    "src/headrace/format/sampling.py",
    "src/headrace/format/terms.py",
    "src/headrace/log/header_check.py",
    "src/headrace/broker/deduplication/ids.py",
    "src/headrace/broker/queues/delivery.py",
    "src/headrace/broker/queues/ledger.py",
    "src/headrace/broker/queues/watching.py",
    "src/headrace/broker/quotas/bucket.py",
    "src/headrace/broker/quotas/meter.py",
    "src/headrace/broker/timer/heap.py",
    "src/headrace/broker/timer/scan.py",
    "src/headrace/broker/timer/stage.py",
    "src/headrace/broker/timer/wheel.py",
    "src/headrace/doors/kafka/produce_cache.py",
    "src/headrace/doors/nsq/nsqd/delivery_wire.py",
    "src/headrace/doors/nsq/nsqd/lines.py",
    "src/headrace/doors/nsq/nsqd/publish_wire.py",
    "src/headrace/doors/rocketmq/remoting/send_wire.py",
    "src/headrace/doors/rocketmq/stored_wire.py",
    "src/headrace/pipeline/arrow.py",
    "src/headrace/pipeline/encode.py",
]


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
        for path in KERNELS
    ]
    built: list[Extension] = cythonize(
        modules, language_level=3, quiet=True, build_dir="build/cython", nthreads=CORES if CORES > 1 else 0
    )
    for extension in built:
        # Set here, because cythonize makes new extensions without it.
        extension.optional = True
    return built


setup(ext_modules=extensions(), options={"build_ext": {"parallel": CORES}})
