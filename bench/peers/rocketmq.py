"""A real RocketMQ of one name server and one broker on loopback, and a proxy if it is wanted."""

from __future__ import annotations

import json
import socket
import time

from bench.peers import free_port, jars
from bench.peers.process import Process

BROKER = """\
brokerClusterName=DefaultCluster
brokerName=headrace
brokerIP1=127.0.0.1
listenPort={port}
haListenPort={ha}
namesrvAddr=127.0.0.1:{namesrv}
storePathRootDir={data}
mappedFileSizeCommitLog=16777216
flushDiskType={flush}
messageDelayLevel={levels}
"""
HEAP = ["-Xmx512m", "-Xms512m"]
# What it reaches into, and Java 17 has closed.
OPENS = [
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
]


class RocketMq(Process):
    """Raises Missing where there is no Java or no way to RocketMQ's jars."""

    name = "Apache RocketMQ"
    version = jars.ROCKETMQ

    def __init__(
        self,
        delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        flush: str = "SYNC_FLUSH",
        *,
        has_proxy: bool = False,
    ) -> None:
        super().__init__()
        self._java = jars.java()
        self._classpath = jars.rocketmq()
        self._levels = delay_levels
        self._flush = flush
        self._has_proxy = has_proxy
        self.namesrv_port = 0
        self.grpc_port = 0

    @property
    def pids(self) -> list[int]:
        """The broker, and the proxy if there is one."""
        return [each.pid for each in self._running[1:]]

    def start(self) -> float:
        folder = self.make_folder()
        self.namesrv_port, self.port = free_port(), free_port()
        (folder / "namesrv.conf").write_text(f"listenPort={self.namesrv_port}\n")
        (folder / "broker.conf").write_text(
            BROKER.format(
                port=self.port,
                ha=free_port(),
                namesrv=self.namesrv_port,
                data=folder / "data",
                levels=self._levels,
                flush=self._flush,
            )
        )
        begin = time.monotonic()
        self._run("org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv.conf")
        self.wait_until(lambda: _accepts(self.namesrv_port))
        self._run("org.apache.rocketmq.broker.BrokerStartup", "broker.conf")
        self.wait_until(lambda: _accepts(self.port))
        if self._has_proxy:
            self._start_proxy()
        return time.monotonic() - begin

    def _start_proxy(self) -> None:
        self.grpc_port = free_port()
        settings = {"rocketMQClusterName": "DefaultCluster", "namesrvAddr": f"127.0.0.1:{self.namesrv_port}"}
        ports = {"grpcServerPort": self.grpc_port, "remotingListenPort": free_port()}
        (self.folder / "proxy.json").write_text(json.dumps({**settings, **ports}))
        self._run("org.apache.rocketmq.proxy.ProxyStartup", "proxy.json", "-pm", "cluster", flag="-pc")
        self.wait_until(lambda: _accepts(self.grpc_port))

    def _run(self, main: str, config: str, *more: str, flag: str = "-c") -> None:
        folder = self.folder
        # Its logs go to the home of the user, unless that is another.
        command = [self._java, *HEAP, *OPENS, f"-Duser.home={folder}", "-cp", self._classpath, main]
        environment = {"ROCKETMQ_HOME": str(folder), "RMQ_PROXY_HOME": str(folder), "PATH": "/usr/bin:/bin"}
        self.run([*command, flag, str(folder / config), *more], cwd=folder, env=environment)


def _accepts(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True
