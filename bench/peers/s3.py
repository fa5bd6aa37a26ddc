"""A server of S3's API on loopback: S3Proxy over a folder."""

from __future__ import annotations

import signal
import socket

from bench.peers import end, free_port, jars
from bench.peers.process import Process

PROPERTIES = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=filesystem-nio2
jclouds.identity={key}
jclouds.credential={secret}
jclouds.filesystem.basedir={data}
"""
KEY, SECRET = "headrace", "headrace-secret"
# It does not know the checksums that AWS's newer clients send and ask for by default.
PLAIN = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required", "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"}
HEAP = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


class S3(Process):
    """Raises Missing where there is no Java or no way to the jars."""

    name = "S3Proxy"
    version = jars.S3PROXY

    def __init__(self) -> None:
        super().__init__()
        self._java = jars.java()
        self._classpath = jars.s3proxy()

    def start(self, *buckets: str) -> None:
        folder = self.make_folder()
        self.port = free_port()
        for bucket in buckets:
            (folder / "data" / bucket).mkdir(parents=True)
        place = {"port": self.port, "key": KEY, "secret": SECRET, "data": folder / "data"}
        (folder / "s3proxy.conf").write_text(PROPERTIES.format(**place))
        self.restart()

    def kill(self) -> None:
        """End it at once; what it has stored stays."""
        self._running[-1].send_signal(signal.SIGKILL)
        end(self._running.pop())

    def restart(self) -> None:
        """Begin, or begin again, on the same port and the same data."""
        conf = str(self.folder / "s3proxy.conf")
        self.run([self._java, *HEAP, "-cp", self._classpath, "org.gaul.s3proxy.Main", "--properties", conf])
        self.wait_until(lambda: socket.create_connection(("127.0.0.1", self.port), 1).close() is None)

    @property
    def options(self) -> dict[str, str]:
        """How clients reach it, by the names of the environment."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
