"""Kafka's own tools with users, rules, tokens and certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.security.test_jwt import token
from tests.clients.test_kafka_security import PASSWORD, Scene, scene
from tests.java.conftest import Java

__all__ = ["scene"]
pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOOLS = "org.apache.kafka.tools"
ACLS = f"{TOOLS}.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
LOGIN = "org.apache.kafka.common.security"


def properties(scene: Scene, folder: Path, protocol: str, mechanism: str, user: str, password: str = PASSWORD) -> str:
    """The path of a client's settings."""
    lines = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        lines |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": scene.authority}
    if protocol == "SSL":
        both = folder / f"{user}.both.pem"
        certificate, key = scene.certificates[user]
        both.write_text(Path(key).read_text() + Path(certificate).read_text())
        lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    elif mechanism == "OAUTHBEARER":
        held = folder / f"{user}.jwt"
        held.write_text(token(sub=user))
        lines |= {
            "sasl.jaas.config": f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": held.as_uri(),
        }
    else:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        lines["sasl.jaas.config"] = f'{LOGIN}.{module} required username="{user}" password="{password}";'
    if mechanism:
        lines["sasl.mechanism"] = mechanism
    path = folder / f"{user}-{protocol}-{mechanism}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return str(path)


@pytest.fixture
def java_with_files(java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """Kafka's clients read tokens from nowhere that they are not told to."""
    held = tmp_path / "ann.jwt"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={held.as_uri()}"
    files = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={held}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{allowed} {files}")
    return java


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "OAUTHBEARER"),
        ("SSL", ""),
    ],
)
def test_console_clients(java_with_files: Java, scene: Scene, tmp_path: Path, protocol: str, mechanism: str) -> None:
    java = java_with_files
    user = "admin" if protocol == "SSL" else "ann"
    config = properties(scene, tmp_path, protocol, mechanism, user)
    topic = f"orders-java-{protocol}-{mechanism}".lower()
    server = ("--bootstrap-server", scene.address(protocol), "--command-config", config, "--topic", topic)
    java(f"{TOOLS}.TopicCommand", *server[:4], "--create", "--topic", topic)
    java(f"{TOOLS}.ConsoleProducer", *server, given="one\ntwo\n")
    group = ("--group", f"java-{topic}", "--from-beginning", "--max-messages", "2", "--timeout-ms", "40000")
    assert java(f"{TOOLS}.consumer.ConsoleConsumer", *server, *group).split() == ["one", "two"]


def test_rules_and_users(java: Java, scene: Scene, tmp_path: Path) -> None:
    admin = properties(scene, tmp_path, "SSL", "", "admin")
    server = ("--bootstrap-server", scene.address("SSL"), "--command-config", admin)
    user = ("--entity-type", "users", "--entity-name", "jo")
    java(CONFIGS, *server, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=jos]", *user)
    assert "SCRAM-SHA-512=iterations=8192" in java(CONFIGS, *server, "--describe", *user)
    right = (
        "--allow-principal",
        "User:jo",
        "--operation",
        "Read",
        "--topic",
        "jo-",
        "--resource-pattern-type",
        "prefixed",
    )
    java(ACLS, *server, "--add", *right)
    java(
        ACLS,
        *server,
        "--add",
        "--deny-principal",
        "User:jo",
        "--operation",
        "All",
        "--cluster",
        "--deny-host",
        "10.0.0.9",
    )
    said = java(ACLS, *server, "--list", "--principal", "User:jo")
    assert "resourceType=TOPIC, name=jo-, patternType=PREFIXED" in said
    assert "operation=READ, permissionType=ALLOW" in said
    assert "host=10.0.0.9, operation=ALL, permissionType=DENY" in said
    assert "name=jo-, patternType=PREFIXED" in java(
        ACLS, *server, "--list", "--topic", "jo-1", "--resource-pattern-type", "match"
    )
    # Those who see nothing see no topics.
    own = properties(scene, tmp_path, "SASL_PLAINTEXT", "SCRAM-SHA-512", "jo", "jos")
    as_jo = ("--bootstrap-server", scene.address("SASL_PLAINTEXT"), "--command-config", own)
    java(f"{TOOLS}.TopicCommand", *server, "--create", "--topic", "jo-1")
    assert java(f"{TOOLS}.TopicCommand", *as_jo, "--list").split() == ["jo-1"]
    java(ACLS, *server, "--remove", *right, "--force")
    assert "name=jo-" not in java(ACLS, *server, "--list", "--principal", "User:jo")
    assert java(f"{TOOLS}.TopicCommand", *as_jo, "--list").split() == []
    java(CONFIGS, *server, "--alter", "--delete-config", "SCRAM-SHA-512", *user)
    assert "SCRAM-SHA-512" not in java(CONFIGS, *server, "--describe", *user)
