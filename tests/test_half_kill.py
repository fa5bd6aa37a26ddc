"""kill -9 in a loop while half messages are prepared, committed and rolled back over HTTP: a real Kafka consumer sees
each committed one once, and none of the others."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

PARTITIONS = 3
PRODUCERS = 4
KILLS = 6
FLAGS = ("--http", "127.0.0.1:0", "--half-timeout-ms", "400", "--half-check-interval-ms", "500")


class Gone(Exception):
    """The broker was killed."""


class Producer:
    """Prepares messages and decides them, whichever broker it is; what has no answer is decided again."""

    def __init__(self, number: int) -> None:
        self.random = Random(number)
        self.number = number
        self.made = 0
        self.ids: dict[str, str] = {}
        """Ids by values."""
        self.wanted: dict[str, str] = {}
        """What the local transaction came to, by values."""
        self.answered: dict[str, Any] = {}

    def run(self, address: str) -> None:
        """Until the broker is gone."""
        http = Http(address)
        try:
            # Those that have no answer, and some that have one.
            for value in [value for value in self.wanted if value not in self.answered] + list(self.answered)[-3:]:
                self.decide(http, value)
            while True:
                self.one(http)
        except Gone:
            pass
        finally:
            http.close()

    def one(self, http: Http) -> None:
        self.made += 1
        value = f"{self.number} {self.made}"
        body = {"topic": "orders", "group": "shop", "value": value, "key": self.random.choice((None, "a", "b", "c"))}
        status, answer = http.ask("POST", "/v1/half", body)
        assert status == 201, answer
        self.ids[value] = answer["id"]
        outcome = self.random.choice(("commit", "commit", "rollback", ""))
        if outcome:
            self.wanted[value] = outcome
            self.decide(http, value)

    def decide(self, http: Http, value: str) -> None:
        status, answer = http.ask("POST", f"/v1/half/{self.ids[value]}/{self.wanted[value]}")
        assert status == 200, answer
        assert self.answered.setdefault(value, answer) == answer


class Http:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._connection = HTTPConnection(host, int(port), timeout=30)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        try:
            self._connection.request(method, path, None if body is None else json.dumps(body))
            response = self._connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, HTTPException):
            raise Gone from None

    def close(self) -> None:
        self._connection.close()


class Watcher:
    """A consumer that reads along through all kills."""

    def __init__(self, address: str) -> None:
        self.seen: dict[tuple[int, int], str] = {}
        self._ended = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "watch", "log_level": 0})
        self._consumer.assign([TopicPartition("orders", index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and not message.error():
                place = message.partition(), message.offset()
                value = message.value().decode()
                assert self.seen.setdefault(place, value) == value, f"{place} held something else before"
        self._consumer.close()

    def end(self) -> dict[tuple[int, int], str]:
        self._ended.set()
        self._thread.join()
        return self.seen


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_each_is_decided_once(tmp_path: Path, durability: str):
    random = Random(7)
    producers = [Producer(number) for number in range(PRODUCERS)]
    with ServeProcess(tmp_path / "data", *FLAGS, "--durability", durability) as serving:
        admin = AdminClient({"bootstrap.servers": serving.kafka, "log_level": 0})
        for made in admin.create_topics([NewTopic("orders", PARTITIONS)]).values():
            made.result(30)
        watcher = Watcher(serving.kafka)
        failed: list[BaseException] = []

        def work(producer: Producer) -> None:
            try:
                producer.run(serving.addresses["http"])
            except BaseException as error:
                failed.append(error)

        for _ in range(KILLS):
            threads = [threading.Thread(target=work, args=(producer,)) for producer in producers]
            for thread in threads:
                thread.start()
            enough = sum(producer.made for producer in producers) + random.randrange(5, 60)
            wait_until(lambda enough=enough: sum(producer.made for producer in producers) >= enough or failed)  # type: ignore[misc]
            time.sleep(random.uniform(0, 0.02))
            serving.kill()
            for thread in threads:
                thread.join()
            serving.start()
        assert not failed, failed[0]

        wanted = {value: outcome for producer in producers for value, outcome in producer.wanted.items()}
        answered = {value: answer for producer in producers for value, answer in producer.answered.items()}
        answer_checks(Http(serving.addresses["http"]), wanted, answered)
        expected = {value for value, outcome in wanted.items() if outcome == "commit"}
        found = read_all(serving.kafka)
        assert Counter(found.values()) == Counter(expected)
        for value, answer in answered.items():
            if answer["state"] == "committed":
                assert found[answer["partition"], answer["offset"]] == value
        assert watcher.end().items() <= found.items()


def answer_checks(http: Http, wanted: dict[str, str], answered: dict[str, Any]) -> None:
    """Decide what is undecided as the producers' group would, until nothing is."""
    end = time.monotonic() + 30
    while http.ask("GET", "/v1/half")[1]["pending"]:
        assert time.monotonic() < end, "messages stay undecided"
        _, asked = http.ask("GET", "/v1/half/checks?group=shop&limit=100&wait_ms=1000")
        for check in asked["checks"]:
            outcome = wanted.get(check["value"], "rollback")
            status, answer = http.ask("POST", f"/v1/half/{check['id']}/{outcome}")
            assert status == 200, answer
            answered[check["value"]] = answer
    http.close()


def read_all(address: str) -> dict[tuple[int, int], str]:
    """All values of the topic, by their places."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition("orders", index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: dict[tuple[int, int], str] = {}
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(20)
        assert message is not None
        if message.error():
            ends += 1
        else:
            found[message.partition(), message.offset()] = message.value().decode()
    consumer.close()
    return found
