"""The jars of Apache Kafka and its tools, of Kafka Streams and Connect's file connectors, of Spark's own Kafka
connector, of RocketMQ and its clients, of S3Proxy and of Iceberg's REST catalogue, fetched once by Maven to
`bench/.peers`.

`KAFKA_LIBS` names a folder that has those of Kafka already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench.peers import Missing

VERSION = "4.3.1"
# The newest set that is complete on Maven Central; connector.xml has the others.
CONNECTOR = "4.2.0"
S3PROXY = "2.6.0"
ICEBERG = "1.10.0"
ROCKETMQ = "5.5.0"
ROCKETMQ_CLIENTS = ("4.9.8", "5.5.0")
ROCKETMQ_GRPC_CLIENT = "5.2.0"
HERE = Path(__file__).parent
SECONDS = 600


def java() -> str:
    """The path of a Java that can run Kafka 4."""
    found = shutil.which("java")
    if found is None:
        raise Missing("there is no Java: Kafka 4 needs Java 17")
    printed = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    version = printed.partition('"')[2].partition('"')[0]
    if not version.partition(".")[0].isdigit() or int(version.partition(".")[0]) < 17:
        raise Missing(f"Kafka 4 needs Java 17, and here is {version or printed.strip()}")
    return found


def classpath() -> str:
    """A class path with all of Kafka on it."""
    return str(folder() / "*")


def folder() -> Path:
    """The folder with the jars, fetched if need be."""
    if given := os.environ.get("KAFKA_LIBS"):
        if not list(Path(given).glob("kafka-clients-*.jar")):
            raise Missing(f"KAFKA_LIBS is {given}, and there is no kafka-clients jar in it")
        return Path(given)
    return _fetched("pom.xml", f"kafka-{VERSION}")


def streams() -> str:
    """A class path with Kafka Streams, its examples, the file connectors of Kafka Connect, and all of Kafka on it."""
    return f"{_fetched('streams.xml', f'kafka-streams-{VERSION}') / '*'}{os.pathsep}{classpath()}"


def connector() -> list[str]:
    """The jars of Spark's own Kafka connector, for `spark.jars`."""
    return sorted(str(path) for path in _fetched("connector.xml", f"spark-kafka-{CONNECTOR}").glob("*.jar"))


def s3proxy() -> str:
    """A class path with S3Proxy on it."""
    return str(_fetched("s3proxy.xml", f"s3proxy-{S3PROXY}") / "*")


def iceberg_rest() -> str:
    """A class path with Iceberg's REST catalogue, Jetty and SQLite on it."""
    return str(_fetched("iceberg-rest.xml", f"iceberg-rest-{ICEBERG}", f"-Diceberg={ICEBERG}") / "*")


def rocketmq() -> str:
    """A class path with RocketMQ's broker, name server and proxy on it."""
    return str(_fetched("rocketmq.xml", f"rocketmq-{ROCKETMQ}-proxy", f"-Drocketmq={ROCKETMQ}") / "*")


def rocketmq_client(version: str) -> str:
    """A class path with RocketMQ's remoting client of a version on it."""
    return str(_fetched("rocketmq-client.xml", f"rocketmq-client-{version}", f"-Drocketmq={version}") / "*")


def rocketmq_grpc_client() -> str:
    """A class path with RocketMQ's gRPC client on it."""
    version = ROCKETMQ_GRPC_CLIENT
    return str(_fetched("rocketmq-grpc-client.xml", f"rocketmq-client-java-{version}", f"-Drocketmq={version}") / "*")


def _fetched(pom: str, name: str, *flags: str) -> Path:
    jars = HERE.parent / ".peers" / name
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("there is no Maven to fetch jars with; a folder with Kafka's may be given in KAFKA_LIBS")
    # Complete or absent: an interrupted fetch must not pass for the whole.
    partial = jars.with_name(f"{name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    fetch = [
        maven,
        "-q",
        "-B",
        "-f",
        str(HERE / pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={partial}",
        *flags,
    ]
    try:
        done = subprocess.run(fetch, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"Maven did not fetch {name} within {SECONDS} s") from None
    if done.returncode:
        raise Missing(f"Maven could not fetch {name}: {(done.stdout + done.stderr).strip()[:400]}")
    try:
        partial.rename(jars)
    except OSError:
        # Another process was faster.
        shutil.rmtree(partial)
    return jars
