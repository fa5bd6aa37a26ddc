"""An application as an AsyncAPI 3 document: what stands in it, and whether the official schema takes it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from tests.clients.building import npm_install

from headrace.sdk import SCENARIOS, App, Message

INSTALL_SECONDS = 100
VALIDATE = """
import Ajv from 'ajv';
import formats from 'ajv-formats';
import { readFileSync } from 'node:fs';
const schema = JSON.parse(readFileSync('node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json'));
const ajv = new Ajv({ strict: false, allErrors: true });
formats(ajv);
const valid = ajv.compile(schema)(JSON.parse(readFileSync('document.json')));
console.log(JSON.stringify(valid ? [] : ajv.errors));
"""


@dataclass
class Item:
    name: str


@dataclass
class Order:
    id: int
    items: list[Item] = field(default_factory=list)


class Placed(msgspec.Struct):
    id: int
    at: float


class Paid(pydantic.BaseModel):
    id: int
    of: Paid | None = None


class Ledger: ...


def shop(url: str = "headrace://10.0.0.7?nsq=10.0.0.8") -> App:
    """An application with a bit of everything."""
    app = App(
        "shop.orders",
        url,
        owner="team shop",
        description="Takes orders.",
        contacts=("#shop", "shop@example.org", "https://example.org/shop"),
    )
    app.topic("placed", key="id", payload=Placed, description="Orders that stand.", owner="team shop", contacts=("#x",))
    app.topic("paid", payload=Paid)
    app.topic("raw")
    app.provide(Ledger, Ledger)

    @app.subscribe("orders", ordered_by="id", scenario="ordered", workers=3)
    async def take(order: Order, message: Message, ledger: Ledger) -> None:
        """Takes an order.

        And more.
        """

    @app.subscribe("orders", group="shop.again", description="The same again.")
    async def again(order: Order) -> None: ...

    @app.subscribe("orders", group="shop.text")
    async def text(order: str) -> None: ...

    for name in SCENARIOS:

        @app.subscribe(f"of-{name}", scenario=name, group="readers")
        async def read(raw: list[dict[str, int]]) -> None: ...

    return app


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def followed(document: dict[str, Any], reference: str) -> Any:
    """What a reference names."""
    assert reference.startswith("#/")
    found: Any = document
    for part in reference[2:].split("/"):
        found = found[part]
    return found


def test_what_it_is_and_where() -> None:
    document = shop().asyncapi(version="1.2.3")
    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {
        "title": "shop.orders",
        "version": "1.2.3",
        "description": "Takes orders.",
        "contact": {"name": "team shop", "email": "shop@example.org", "url": "https://example.org/shop"},
        "x-headrace-contacts": ["#shop", "shop@example.org", "https://example.org/shop"],
    }
    assert document["servers"] == {
        "kafka": {"host": "10.0.0.7:9092", "protocol": "kafka"},
        "nsq": {"host": "10.0.0.8:4150", "protocol": "nsq"},
    }
    assert shop("kafka://a,b?tls=1").asyncapi()["servers"] == {
        "kafka": {"host": "a:9092", "protocol": "kafka-secure"},
        "kafka-2": {"host": "b:9092", "protocol": "kafka-secure"},
    }
    assert shop("nsq://a").asyncapi()["servers"] == {"nsq": {"host": "a:4150", "protocol": "nsq"}}
    assert App("plain").asyncapi()["info"] == {"title": "plain", "version": "0.0.0"}


def test_what_it_reads() -> None:
    document = shop().asyncapi()
    operations = document["operations"]
    take = operations["receive-orders-shop.orders"]
    assert take["action"] == "receive"
    assert take["channel"] == {"$ref": "#/channels/orders"}
    assert take["summary"] == "Takes an order."
    assert take["title"].endswith("take")
    assert take["bindings"] == {"x-nsq": {"topic": "orders", "channel": "shop.orders"}}
    assert take["x-headrace-scenario"] == "ordered"
    assert take["x-headrace-tuning"]["workers"] == 3
    assert take["x-headrace-tuning"]["ladder"] == [0.2, 1.0, 5.0]
    assert take["x-headrace-ordered-by"] == "id"
    assert take["x-headrace-dead-letters"] == "orders.shop.orders.dead"
    assert operations["receive-orders-shop.again"]["summary"] == "The same again."
    stream = operations["receive-of-stream-readers"]
    group = {"type": "string", "enum": ["readers"]}
    assert stream["bindings"]["kafka"]["groupId"] == group
    assert "summary" not in stream
    fanout = operations["receive-of-fanout-readers"]
    assert fanout["bindings"]["x-nsq"]["channel"] == "readers-*#ephemeral"
    assert "x-headrace-dead-letters" not in fanout
    # On Kafka all of them are groups, but for those that are for one instance alone.
    kafka = shop("kafka://a").asyncapi()["operations"]
    assert kafka["receive-of-task-readers"]["bindings"]["kafka"]["groupId"] == group
    assert "groupId" not in kafka["receive-of-fanout-readers"]["bindings"]["kafka"]


def test_what_it_sends() -> None:
    document = shop().asyncapi()
    assert document["operations"]["send-placed"] == {
        "action": "send",
        "channel": {"$ref": "#/channels/placed"},
        "summary": "Orders that stand.",
        "messages": [{"$ref": "#/channels/placed/messages/Placed"}],
    }
    placed = document["channels"]["placed"]
    assert (placed["address"], placed["description"]) == ("placed", "Orders that stand.")
    assert (placed["x-headrace-owner"], placed["x-headrace-contacts"]) == ("team shop", ["#x"])
    assert placed["messages"]["Placed"]["bindings"]["kafka"]["key"]["description"] == "the field id of the payload"
    # A topic that is only read is not sent to, though its key is known.
    assert "send-orders" not in document["operations"]
    assert document["channels"]["raw"]["messages"]["message"]["contentType"] == "application/octet-stream"


def test_payloads_and_headers() -> None:
    document = shop().asyncapi()
    messages = document["channels"]["orders"]["messages"]
    assert set(messages) == {"Order", "str"}
    order = messages["Order"]
    assert order["contentType"] == "application/json"
    assert "traceparent" in order["headers"]["properties"]
    schema = followed(document, order["payload"]["$ref"])
    assert schema["required"] == ["id"]
    assert followed(document, schema["properties"]["items"]["items"]["$ref"])["properties"] == {
        "name": {"type": "string"}
    }
    assert (messages["str"]["contentType"], messages["str"]["payload"]) == ("text/plain", {"type": "string"})
    paid = followed(document, document["channels"]["paid"]["messages"]["Paid"]["payload"]["$ref"])
    assert set(paid["properties"]) == {"id", "of"}
    # A handler of lists is given many messages, each of which is this.
    each = document["channels"]["of-stream"]["messages"]["dict_str_int"]["payload"]
    assert each == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_types_of_one_name_are_told_apart() -> None:
    app = App("shop")
    app.topic("ours", payload=Order)
    app.topic("theirs", payload=pydantic.create_model("Order", sku=(str, ...), __module__="theirs"))
    document = app.asyncapi()
    ours = followed(document, document["channels"]["ours"]["messages"]["Order"]["payload"]["$ref"])
    theirs = followed(document, document["channels"]["theirs"]["messages"]["Order"]["payload"]["$ref"])
    assert (set(ours["properties"]), set(theirs["properties"])) == ({"id", "items"}, {"sku"})


def test_every_reference_leads_somewhere_and_it_is_json() -> None:
    for url in ("headrace://a", "kafka://a,b", "nsq://a", "memory://"):
        document = shop(url).asyncapi()
        assert json.loads(json.dumps(document)) == document
        found = list(references(document))
        assert len(found) > 20
        for each in found:
            followed(document, each)


def test_what_has_no_schema_is_named() -> None:
    app = App("shop")
    app.topic("odd", payload=type(lambda: None))
    with pytest.raises(TypeError, match="no schema can be made"):
        app.asyncapi()


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the official schemas are, and what checks by them."""
    folder = tmp_path_factory.mktemp("specs")
    (folder / "package.json").write_text('{"name": "check", "version": "1.0.0", "private": true, "type": "module"}')
    (folder / "validate.js").write_text(VALIDATE)
    npm_install(folder, "@asyncapi/specs@6.11.1", "ajv@8", "ajv-formats@3", seconds=INSTALL_SECONDS)
    return folder


def complaints(specs: Path, document: dict[str, Any]) -> list[Any]:
    (specs / "document.json").write_text(json.dumps(document))
    done = subprocess.run(["node", "validate.js"], cwd=specs, capture_output=True, text=True, timeout=60, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.node
@pytest.mark.parametrize("url", ["headrace://a", "kafka://a,b", "nsq://a", "memory://"])
def test_the_official_schema_takes_it(specs: Path, url: str) -> None:
    document = shop(url).asyncapi()
    assert complaints(specs, document) == []
    # It is looked at, and not only let through.
    del document["info"]["version"]
    assert complaints(specs, document) != []
