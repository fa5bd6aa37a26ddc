from __future__ import annotations

import re
import tomllib
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

import headrace
from headrace.addresses import format_address, parse_address, parse_addresses
from headrace.broker.settings import BrokerSettings
from headrace.config import Config, resolve, sections, settings_table
from headrace.errors import ConfigError
from headrace.settings import Settings

DOCS = Path(__file__).parent.parent / "docs"


def test_the_defaults_make_sense():
    assert resolve({}, {}, {}) == Config()


def test_the_source_nearest_to_the_command_line_wins():
    file = {"node_id": 1, "num_partitions": 1, "durability": "memory"}
    environment = {"HEADRACE_NODE_ID": "2", "HEADRACE_NUM_PARTITIONS": "2", "PATH": "/bin"}
    config = resolve({"node_id": "3"}, environment, file)
    assert (config.node_id, config.num_partitions, config.durability) == (3, 2, "memory")


def test_text_becomes_the_type_of_the_field():
    config = resolve({"auto_create_topics": "no", "log_retention_ms": "-1", "journal_bytes": "1_048_576"}, {}, {})
    assert config.auto_create_topics is False
    assert config.log_retention_ms == -1
    assert config.journal_bytes == 1_048_576


@pytest.mark.parametrize(
    ("flags", "environment", "file", "words"),
    [
        ({"node_id": "one"}, {}, {}, "--node-id: 'one' is not a whole number"),
        ({"node_id": "-1"}, {}, {}, "--node-id: -1 is out of range. It must be at least 0."),
        ({"node_id": str(1 << 31)}, {}, {}, "at most 2147483647"),
        ({"durability": "maybe"}, {}, {}, "--durability: 'maybe' is not one of sync, async, memory"),
        ({"auto_create_topics": "perhaps"}, {}, {}, "--auto-create-topics: 'perhaps' is neither true nor false"),
        ({}, {"HEADRACE_KAFKA": "localhost"}, {}, "HEADRACE_KAFKA: 'localhost' is not HOST:PORT"),
        ({}, {"HEADRACE_KAFKA_ADVERTISED": "off"}, {}, "HEADRACE_KAFKA_ADVERTISED: `off` is not an address"),
        ({}, {}, {"node_id": "1.5"}, "f.toml: node_id: '1.5' is not a whole number"),
        ({}, {}, {"node_id": 1.5}, "f.toml: node_id: 1.5 is not a whole number"),
        ({}, {}, {"node_id": True}, "f.toml: node_id: True is not a whole number"),
        ({}, {}, {"data": 7}, "f.toml: data: 7 is not text"),
        ({"data": ""}, {}, {}, "--data: the empty text names no directory"),
        ({"data": "s3://bucket/x"}, {}, {}, "--data cannot be 's3://bucket/x': URLs with s3: are not supported"),
        ({}, {"HEADRACE_DATA": "file://host/x"}, {}, "HEADRACE_DATA cannot be 'file://host/x': it names the host"),
        ({}, {}, {"nodeid": 1}, "f.toml: there is no setting 'nodeid' (did you mean node_id?)"),
        ({}, {}, {"xyzzy": 1}, "f.toml: there is no setting 'xyzzy'; `headrace serve --help` lists them"),
        ({"tls_cert": "c.pem"}, {}, {}, "tls_cert and tls_key go together"),
        ({"tls_client_ca": "c.pem"}, {}, {}, "tls_client_ca needs tls_cert"),
        (
            {"amqp": "127.0.0.1:5672"},
            {},
            {},
            "--amqp: '127.0.0.1:5672' cannot be opened: this version has no AMQP door",
        ),
        ({"amqp": "5672"}, {}, {}, "--amqp: '5672' is not HOST:PORT"),
        ({}, {"HEADRACE_CONSOLE": "9090"}, {}, "HEADRACE_CONSOLE: '9090' is not HOST:PORT"),
        ({"group_min_session_timeout_ms": "9000000"}, {}, {}, "is above group_max_session_timeout_ms"),
    ],
)
def test_an_error_names_the_source_and_the_value(flags, environment, file, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        resolve(flags, environment, file, "f.toml")


def test_every_door_can_be_closed():
    listeners = [each.name for each in fields(Config) if each.metadata["address"]]
    doors = [*listeners, "amqp", "console"]
    assert {"kafka", "http", "nsq", "rocketmq"} <= set(doors)
    closed = resolve(dict.fromkeys(doors, "off"), {}, {})
    assert {getattr(closed, name) for name in doors} == {"off"}


def test_a_config_made_in_code_is_checked_too():
    with pytest.raises(ConfigError, match="durability: 'never'"):
        Config(durability="never")


def test_settings_are_values():
    config = Config(node_id=3, auth_http="http://user:password@127.0.0.1:1")
    assert config == replace(Config(auth_http=config.auth_http), node_id=3) != replace(config, node_id=4)
    assert config != config.part(BrokerSettings) == config.part(BrokerSettings)
    assert len({config, replace(config), Config()}) == 2
    assert "node_id=3" in repr(config)
    assert "user:password" not in repr(config)
    assert isinstance(config.part(BrokerSettings).node_id, int)
    assert Config.node_id == 0


def test_settings_cannot_be_changed():
    config = Config()
    for change in (lambda: setattr(config, "node_id", 1), lambda: delattr(config, "node_id")):
        with pytest.raises(FrozenInstanceError, match="'node_id'"):
            change()
    assert config == Config()


def test_a_setting_that_there_is_not_is_named():
    with pytest.raises(TypeError, match="Config has no setting 'node'"):
        Config(node=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("[::1]:0", ("::1", 0)),
        (":9092", ("0.0.0.0", 9092)),
        ("off", None),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "9092", "host:", "host:70000", "host:-1", "host:0x1", "::1:9092", "host:٣"])
def test_what_is_no_address(text):
    with pytest.raises(ConfigError):
        parse_address(text)


def test_an_address_is_written_as_it_is_read():
    for host, port in (("::1", 1), ("localhost", 2)):
        assert parse_address(format_address(host, port)) == (host, port)


def test_every_setting_is_in_a_section_of_its_own_part():
    found = sections()
    assert [each.name for part in found.values() for each in part] == [each.name for each in fields(Config)]
    assert Settings.TITLE not in found
    assert "kafka_listeners" in [each.name for each in found["Kafka"]]
    assert "log_level" in [each.name for each in found["Logging and console"]]


def test_the_documented_table_is_up_to_date():
    text = (DOCS / "configuration.md").read_text()
    assert settings_table() in text, "run `make docs` to renew the table in docs/configuration.md"


def test_the_package_says_the_version_that_it_is_built_with():
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == headrace.__version__


def test_look_up_services():
    assert parse_addresses(" a:1, [::1]:2,") == [("a", 1), ("::1", 2)]
    assert parse_addresses("") == []
    for wrong in ("nowhere", "a:0", "off", "a:1;b:2"):
        with pytest.raises(ConfigError, match="lookupd_tcp: "):
            Config(lookupd_tcp=wrong)
    for closed in ({"nsq": "off"}, {"nsq_http": "off"}):
        with pytest.raises(ConfigError, match="needs the doors nsq and nsq_http"):
            Config(lookupd_tcp="a:1", **closed)


@pytest.mark.parametrize("wrong", ["", "10", "s", "1x", "ten s", "1s 2", "-1s"])
def test_delay_levels_are_numbers_with_units(wrong: str) -> None:
    with pytest.raises(ConfigError, match="rocketmq_delay_levels"):
        Config(rocketmq_delay_levels=wrong)
