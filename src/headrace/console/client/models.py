"""What brokers answer. Fields that a newer broker adds are ignored; those that an older one lacks have defaults."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

Number = int | float


class Answer(Struct, frozen=True, kw_only=True):
    """The base of all: a value."""


class Cluster(Answer, frozen=True):
    cluster_id: str = ""
    node_id: int = 0
    version: str = ""
    group: dict[str, Any] | None = None


class FigurePage(Answer, frozen=True):
    version: str
    full: bool = False
    more: bool = False
    at_ms: int = 0
    latency_bounds: list[float] = []
    columns: dict[str, list[str]] = {}
    names: dict[str, int] = {}
    rows: dict[str, list[list[Any]]] = {}
    gone: dict[str, list[list[Any]]] = {}


class Problem(Answer, frozen=True):
    kind: str
    severity: str = "warning"
    subject: dict[str, Any] = {}
    message: str = ""
    value: Number | None = None


class Overview(Answer, frozen=True):
    at_ms: int = 0
    problems: list[Problem] = []
    problems_total: int = 0


class Topic(Answer, frozen=True):
    topic: str
    internal: bool = False
    partitions: int = 0
    offline: int = 0
    messages: int | None = None
    bytes: int | None = None
    messages_in_rate: Number | None = None
    bytes_in_rate: Number | None = None
    queues: int = 0
    retention_ms: int | None = None
    cleanup_policy: str = ""
    durability: str = ""


class Topics(Answer, frozen=True):
    topics: list[Topic]
    total: int = 0
    offset: int = 0


class TopicPartition(Answer, frozen=True):
    partition: int
    start: int | None = None
    end: int | None = None
    last_stable: int | None = None
    bytes: int | None = None
    offline: str | None = None
    leader: int | None = None
    isr: list[int] = []
    replicas: list[int] = []


class TopicDetail(Topic, frozen=True):
    partition_list: list[TopicPartition] = []
    groups: list[str] = []
    queue_names: list[str] = []
    settings: dict[str, Any] = {}


class Setting(Answer, frozen=True):
    name: str
    value: str | None = None
    default: str | None = None
    source: str = "default"
    type: str = "string"
    doc: str = ""
    choices: list[str] = []
    honoured: bool = True


class Settings(Answer, frozen=True):
    settings: list[Setting]


class SettingChange(Answer, frozen=True):
    name: str
    before: str | None = None
    after: str | None = None


class SettingChanges(Answer, frozen=True):
    changed: list[SettingChange] = []


class CheckProblem(Answer, frozen=True):
    field: str
    message: str


class TopicCheck(Answer, frozen=True):
    valid: bool
    problems: list[CheckProblem] = []


class DeletedPartition(Answer, frozen=True):
    partition: int
    start_before: int = 0
    start: int = 0
    end: int = 0
    deleted: int = 0


class DeletedRecords(Answer, frozen=True):
    partitions: list[DeletedPartition] = []


class Header(Answer, frozen=True):
    name: str
    value: str | None = None
    value_base64: str | None = None


class Message(Answer, frozen=True):
    partition: int
    offset: int
    topic: str = ""
    id: str = ""
    timestamp: int = 0
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    value_json: Any = None
    value_hex: str | None = None
    headers: list[Header] = []
    size: int = 0
    key_bytes: int | None = None
    value_bytes: int | None = None
    masked: bool = False
    # Of messages of a queue.
    attempts: int | None = None
    state: str = ""
    consumer: str | None = None
    deadline_ms: int | None = None
    due_ms: int | None = None
    error: str | None = None
    stuck: bool = False
    parked: int | None = None


class Messages(Answer, frozen=True):
    messages: list[Message]
    next: str | None = None
    looked: int | None = None
    tail: str | None = None
    skipped: int = 0
    truncated: bool = False


class Step(Answer, frozen=True):
    """Something that happened to a message."""

    t: int
    message: str
    what: str
    after_ms: int = 0
    who: str = ""
    consumer: str = ""
    attempt: int = 0
    delay_ms: int | None = None
    error: str = ""
    at: str = ""


class Reader(Answer, frozen=True):
    """How far a queue or a group is with a message."""

    message: str
    kind: str
    name: str
    state: str
    note: str = ""


class Life(Answer, frozen=True):
    id: str
    trace: str | None = None
    messages: list[Message] = []
    steps: list[Step] = []
    readers: list[Reader] = []
    notes: list[str] = []


class Group(Answer, frozen=True):
    group: str
    kind: str = ""
    state: str = ""
    protocol: str = ""
    members: int = 0
    topics: list[str] = []
    lag: int | None = None
    lag_ms: int | None = None


class Groups(Answer, frozen=True):
    groups: list[Group]
    total: int = 0
    offset: int = 0


class TopicPlace(Answer, frozen=True):
    topic: str
    partition: int


class Member(Answer, frozen=True):
    member_id: str
    client_id: str = ""
    host: str = ""
    instance_id: str | None = None
    partitions: list[TopicPlace] = []


class GroupPartition(Answer, frozen=True):
    topic: str
    partition: int
    committed: int | None = None
    start: int | None = None
    end: int | None = None
    lag: int | None = None
    lag_ms: int | None = None
    member_id: str | None = None
    client_id: str | None = None


class GroupDetail(Group, frozen=True):
    member_list: list[Member] = []
    partition_list: list[GroupPartition] = []


class ResetPartition(Answer, frozen=True):
    topic: str
    partition: int
    before: int | None = None
    after: int = 0
    start: int = 0
    end: int = 0
    change: int | None = None


class Reset(Answer, frozen=True):
    partitions: list[ResetPartition] = []


class Queue(Answer, frozen=True):
    topic: str
    queue: str
    paused: bool = False
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    blocked: int = 0
    condemned: int = 0
    stuck: int = 0
    move_error: str = ""
    consumers: int = 0
    age_ms: int | None = None
    delivered: int = 0
    finished: int = 0
    requeued: int = 0
    timed_out: int = 0
    dead: int = 0
    dead_letter_topic: str = ""
    settings: dict[str, Any] = {}
    subscriptions: list[dict[str, Any]] = []
    parked: int = 0


class Queues(Answer, frozen=True):
    queues: list[Queue]
    total: int
    offset: int


class Outcome(Answer, frozen=True):
    partition: int
    offset: int
    outcome: str = ""
    reason: str | None = None
    sent_to: Any = None


class Outcomes(Answer, frozen=True):
    results: list[Outcome] = []
    left: int = 0


class QueueName(Answer, frozen=True):
    topic: str
    queue: str


class DeadTopic(Answer, frozen=True):
    topic: str
    messages: int | None = None
    waiting: int | None = None
    queues: list[QueueName] = []


class DeadTopics(Answer, frozen=True):
    topics: list[DeadTopic] = []


class DeadKind(Answer, frozen=True):
    error: str | None = None
    topic: str | None = None
    queue: str | None = None
    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


class DeadKinds(Answer, frozen=True):
    kinds: list[DeadKind] = []
    counted: int = 0
    all_counted: bool = True


class DeadLetter(Message, frozen=True):
    origin: dict[str, Any] = {}
    error: str | None = None
    dead_at_ms: int | None = None
    redriven: int = 0
    sent_back: bool = False


class DeadLetters(Answer, frozen=True):
    messages: list[DeadLetter] = []
    next: str | None = None
    looked: int = 0


class Timers(Answer, frozen=True):
    timers: list[dict[str, Any]] = []
    next: Any = None
    pending: int = 0


class Transaction(Answer, frozen=True):
    transactional_id: str
    state: str = ""
    producer_id: int | None = None
    epoch: int | None = None
    started_ms: int | None = None
    age_ms: int | None = None
    timeout_ms: int | None = None
    partitions: list[TopicPlace] = []
    hanging: bool = False


class Transactions(Answer, frozen=True):
    transactions: list[Transaction] = []
    total: int = 0
    offset: int = 0


class Client(Answer, frozen=True):
    id: int
    door: str = ""
    address: str = ""
    user: str | None = None
    client_id: str | None = None
    age_ms: int | None = None
    tls: bool = False


class Clients(Answer, frozen=True):
    clients: list[Client] = []
    total: int = 0
    offset: int = 0


class App(Answer, frozen=True):
    app: str
    owner: str = ""
    description: str = ""
    contacts: list[str] = []
    instances: int = 0
    lost: int = 0
    reads: list[Any] = []
    sends: list[Any] = []
    settings: int = 0


class Apps(Answer, frozen=True):
    apps: list[App] = []
    total: int = 0
    offset: int = 0


class Instance(Answer, frozen=True):
    id: str
    host: str = ""
    pid: int | None = None
    started_ms: int | None = None
    seen_ms: int | None = None
    lost: bool = False
    follows: Any = None
    refused: Any = None


class LiveSetting(Answer, frozen=True):
    subscription: str = ""
    setting: str = ""
    value: Any = None
    by: str = ""
    at_ms: int | None = None


class AppDetail(App, frozen=True):
    instance_list: list[Instance] = []
    subscriptions: list[dict[str, Any]] = []
    code_settings: dict[str, Any] = {}
    live: list[LiveSetting] = []


class LiveChange(Answer, frozen=True):
    offset: int = 0
    at_ms: int | None = None
    by: str = ""
    subscription: str = ""
    setting: str = ""
    before: Any = None
    after: Any = None


class LiveHistory(Answer, frozen=True):
    changes: list[LiveChange] = []


class Registration(Answer, frozen=True):
    id: str = ""
    kind: str = "topic"
    topic: str = ""
    group: str | None = None
    owner: str = ""
    contacts: list[str] = []
    description: str = ""
    scenario: str = ""
    rate: Number | None = None
    retention_ms: int | None = None
    partitions: int | None = None
    state: str = ""
    requested_by: str = ""
    requested_ms: int | None = None
    decided_by: str | None = None
    reason: str | None = None


class Registrations(Answer, frozen=True):
    registrations: list[Registration] = []
    mode: str = "allow"
    total: int = 0
    offset: int = 0


class Unregistered(Answer, frozen=True):
    uses: list[dict[str, Any]] = []


class Rule(Answer, frozen=True):
    """An alert's rule, as the broker keeps it."""

    id: str
    name: str
    figure: str
    threshold: float
    scope: dict[str, str] = {}
    compare: str = ">"
    for_ms: int = 0
    severity: str = "warning"
    channels: list[str] = []
    enabled: bool = True
    labels: dict[str, str] = {}
    runbook: str | None = None
    built_in: bool = False
    version: Any = None


class Rules(Answer, frozen=True):
    rules: list[Rule] = []
    version: Any = None


class AlertFigure(Answer, frozen=True):
    name: str
    unit: str = ""
    doc: str = ""
    scopes: list[str] = []


class AlertFigures(Answer, frozen=True):
    figures: list[AlertFigure] = []


class Silence(Answer, frozen=True):
    id: str
    matchers: dict[str, str] = {}
    starts_ms: int = 0
    ends_ms: int = 0
    comment: str = ""
    created_by: str = ""
    created_ms: int | None = None


class Silences(Answer, frozen=True):
    silences: list[Silence] = []


class Channel(Answer, frozen=True):
    id: str
    kind: str
    url: str | None = None
    to: Any = None
    secret_set: bool = False
    enabled: bool = True


class ChannelSecret(Answer, frozen=True):
    """What is needed to send; shown to nobody."""

    url: str | None = None
    secret: str | None = None


class Channels(Answer, frozen=True):
    channels: list[Channel] = []


class PreparedMessages(Answer, frozen=True):
    half: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    next: Any = None
