"""The checker of histories of transactions: what clients did, were answered and saw, held against each other.

The one idea: every record carries a value of its own, and a record that is written again by another attempt carries
another. So a reader that gets a value as committed shows which attempt has committed; and that must be one that asked
for it, of which all can be read, at the places that were answered, and whose offsets count for its group as well. An
attempt that asked and got no answer may have committed or not, but all of it or nothing.

A reader of committed records that has passed an offset has settled for ever what is there, and what is not.

Nothing here knows of a simulator, of sockets or of a broker: clients of any broker can write such a history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from simulation.history import PartitionView, Place, Record, Violation, require


class State(Enum):
    """What is known of an attempt."""

    OPEN = "open"
    """Its client has not asked to commit it. If its client dies, it stays so."""
    COMMITTING = "asked to commit"
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Its client asked to abort it, or learned that it is not committed."""


@dataclass(slots=True, eq=False)
class Owner:
    """One client that took a transactional id."""

    transactional_id: str
    name: str
    asked: int
    taken: int | None = None
    fenced: bool = False
    """Another client has claimed the id since."""


@dataclass(slots=True, eq=False)
class Written:
    """One record of an attempt."""

    value: str
    place: Place
    number: int
    cause: tuple[str, str] | None = None
    """The group, and the value of the record whose effect this one is."""
    too_late: bool = False
    """Sent by an owner that was fenced already."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a group has read of a partition, within an attempt: from `first` on, and goes on at `next`."""

    group: str
    place: Place
    first: int
    next: int


@dataclass(slots=True, eq=False)
class Attempt:
    """One transaction of one client. All of it was acknowledged when its client asks to commit."""

    name: str
    owner: Owner
    state: State = State.OPEN
    written: list[Written] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    hopeless: bool = False
    """The commit was asked for by an owner that was fenced already."""


@dataclass(slots=True, eq=False)
class View(PartitionView):
    """What readers of committed records know of one partition, too."""

    passed: set[int] = field(default_factory=set)
    """Offsets that a reader of committed records has passed."""
    visible: dict[int, str] = field(default_factory=dict)
    """What such a reader saw there."""
    stable: int = 0
    """The largest last stable offset in any answer."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is there after everything has settled: no client writes any more, and every timeout has run out."""

    committed: Mapping[Place, Sequence[Record]]
    """All of each partition, as a reader of committed records sees it."""
    ends: Mapping[Place, tuple[int, int]] = field(default_factory=dict)
    """Last stable offset and high watermark."""
    groups: Mapping[tuple[str, Place], int] = field(default_factory=dict)
    """Where each group goes on; -1 where it has committed nothing."""


class TransactionHistory:
    """All that clients know."""

    def __init__(self) -> None:
        self.attempts: dict[str, Attempt] = {}
        self._owners: dict[str, list[Owner]] = {}
        self._written: dict[str, tuple[Attempt, Written]] = {}
        self._views: dict[Place, View] = {}
        self._groups: dict[tuple[str, Place], int] = {}
        self._moment = 0

    def view(self, place: Place) -> View:
        """What is known of a partition."""
        return self._views.setdefault(place, View(f"{place[0]}-{place[1]}"))

    # --- owners of transactional ids ---

    def claim(self, transactional_id: str, name: str) -> Owner:
        """A client is about to ask for a transactional id."""
        self._moment += 1
        owner = Owner(transactional_id, name, self._moment)
        self._owners.setdefault(transactional_id, []).append(owner)
        return owner

    def on_claimed(self, owner: Owner) -> None:
        """It has the id: every owner from before it asked is fenced."""
        self._moment += 1
        owner.taken = self._moment
        for other in self._owners[owner.transactional_id]:
            if other is not owner and other.taken is not None and other.taken < owner.asked:
                other.fenced = True

    def has_rivals(self, owner: Owner) -> bool:
        """Whether another client may have taken the id from this one."""
        return any(
            each is not owner and (each.taken is None or each.taken > owner.asked)
            for each in self._owners[owner.transactional_id]
        )

    # --- what clients do ---

    def begin(self, name: str, owner: Owner) -> Attempt:
        """A client begins a transaction."""
        require(name not in self.attempts, f"{name} was begun twice: the history is wrong")
        attempt = self.attempts[name] = Attempt(name, owner)
        return attempt

    def send(
        self, attempt: Attempt, place: Place, value: str, number: int, cause: tuple[str, str] | None = None
    ) -> Written:
        """A record leaves its client for the first time; `number` is its place in the client's order."""
        require(value not in self._written, f"{value} was sent twice: the history is wrong")
        written = Written(value, place, number, cause, attempt.owner.fenced)
        attempt.written.append(written)
        self._written[value] = attempt, written
        return written

    def acknowledge(self, written: Written, offset: int) -> None:
        """The broker answered with the offset of a record."""
        require(not written.too_late, f"{written.value} was taken from a client that was fenced before it was sent")
        self.view(written.place).bind(offset, written.value, "acknowledged")

    def start_commit(self, attempt: Attempt) -> None:
        """The client is about to ask to commit; it may do so again and again."""
        if attempt.state is State.OPEN:
            attempt.state = State.COMMITTING
            attempt.hopeless = attempt.owner.fenced

    def commit(self, attempt: Attempt) -> None:
        """The broker answered that the transaction is committed."""
        require(attempt.state is State.COMMITTING, f"{attempt.name} was {attempt.state.value}, and is committed")
        require(not attempt.hopeless, f"{attempt.name} was committed by a client that was fenced before")
        attempt.state = State.COMMITTED

    def abort(self, attempt: Attempt) -> None:
        """The client has given the transaction up, or learned that it will never be committed."""
        require(attempt.state is not State.COMMITTED, f"{attempt.name} was committed, and is aborted")
        attempt.state = State.ABORTED

    # --- what readers see ---

    def read(self, place: Place, asked: int, records: Sequence[Record], following: int, stable: int) -> None:
        """A reader of committed records asked from an offset, got these, and goes on at `following`."""
        view = self.view(place)
        require(following <= stable, f"{view.name}: a reader came to {following}, beyond the stable offset {stable}")
        view.stable = max(view.stable, stable)
        last = asked - 1
        for offset, value in records:
            require(last < offset < following, f"{view.name}: {value} at {offset}, behind {last}, before {following}")
            last = offset
            self._see(view, offset, value)
        self._pass(view, asked, dict(records), following)

    def _see(self, view: View, offset: int, value: str) -> None:
        known = self._written.get(value)
        require(known is not None, f"{view.name}: {value} at {offset} was never sent")
        assert known is not None
        attempt, written = known
        require(f"{written.place[0]}-{written.place[1]}" == view.name, f"{value} was sent to {written.place}")
        require(
            attempt.state in (State.COMMITTING, State.COMMITTED) and not attempt.hopeless,
            f"{view.name}: {value} at {offset} was read as committed, but {attempt.name} is {attempt.state.value}"
            + (" by a fenced client" if attempt.hopeless else ""),
        )
        view.bind(offset, value, "read")

    def _pass(self, view: View, asked: int, records: dict[int, str], following: int) -> None:
        for offset in range(asked, following):
            value = records.get(offset)
            if offset in view.passed:
                before = view.visible.get(offset)
                require(value is not None or before is None, f"{view.name}: {before} at {offset} has disappeared")
                require(before is not None or value is None, f"{view.name}: {value} at {offset} came late")
            else:
                view.passed.add(offset)
                if value is not None:
                    view.visible[offset] = value

    def read_all(self, place: Place, records: Iterable[Record]) -> None:
        """A reader of everything, committed or not, got these."""
        view = self.view(place)
        for offset, value in records:
            require(value in self._written, f"{view.name}: {value} at {offset} was never sent")
            view.bind(offset, value, "read")

    def observe_stable(self, place: Place, stable: int, since: int) -> None:
        """A client got the last stable offset; `since` is the largest that was known when it asked."""
        view = self.view(place)
        require(stable >= since, f"{view.name}: the last stable offset was {since}, and is {stable}")
        view.stable = max(view.stable, stable)

    def last_committed(self, group: str, place: Place) -> int:
        """The largest offset that a group is known to have committed: what to give to `observe_committed`."""
        known = self._groups.get((group, place), -1)
        sure = [
            progress.next
            for attempt in self.attempts.values()
            if attempt.state is State.COMMITTED
            for progress in attempt.progress
            if (progress.group, progress.place) == (group, place)
        ]
        return max([known, *sure])

    def observe_committed(self, group: str, place: Place, offset: int, since: int) -> None:
        """A client got the committed offset of a group; `since` is what `last_committed` returned before that."""
        require(offset >= since, f"{group}: {since} of {place} was committed, and went back to {offset}")
        asked = (State.COMMITTING, State.COMMITTED)
        possible = {
            progress.next
            for attempt in self.attempts.values()
            if attempt.state in asked and not attempt.hopeless
            for progress in attempt.progress
            if (progress.group, progress.place) == (group, place)
        }
        asked_for = offset == -1 or offset in possible
        require(asked_for, f"{group}: {offset} of {place} is committed, which no client asked for")
        self._groups[group, place] = max(offset, self._groups.get((group, place), -1))

    # --- the end ---

    def check(self, found: Found) -> None:
        """Everything has settled: what is there must be all that was committed, and nothing else."""
        for place, (stable, high) in found.ends.items():
            require(stable == high, f"{place}: the last stable offset is stuck at {stable}, the end is {high}")
        there: set[str] = set()
        for place, records in found.committed.items():
            there |= self._look(place, records, found.ends.get(place))
        for attempt in self.attempts.values():
            self._whole(attempt, there)
        causes: dict[str, set[str]] = {}
        for (group, place), offset in found.groups.items():
            self.observe_committed(group, place, offset, self.last_committed(group, place))
            self._tiled(group, place, offset, there)
            inputs = found.committed.get(place, ())
            self._effects(group, inputs, offset, there)
            causes.setdefault(group, set()).update(value for _, value in inputs)
        for value in sorted(there):
            cause = self._written[value][1].cause
            require(
                cause is None or cause[0] not in causes or cause[1] in causes[cause[0]],
                f"{value} is the effect of {cause}, which is not there",
            )

    def _look(self, place: Place, records: Sequence[Record], ends: tuple[int, int] | None) -> set[str]:
        view = self.view(place)
        once: dict[str, int] = {}
        for offset, value in records:
            require(value not in once, f"{view.name}: {value} is at {once.get(value)} and at {offset}: a duplicate")
            once[value] = offset
        end = max([*view.visible, *once.values()], default=-1) + 1
        stable = end if ends is None else ends[0]
        require(stable >= view.stable or ends is None, f"{view.name}: the stable offset went from {view.stable} back")
        self.read(place, 0, records, end, max(stable, end))
        sources = (self._written[value] for _, value in records)
        view.check_order(
            (record, attempt.owner.name, written.number)
            for record, (attempt, written) in zip(records, sources, strict=True)
        )
        return set(once)

    def _whole(self, attempt: Attempt, there: set[str]) -> None:
        missing = [each.value for each in attempt.written if each.value not in there]
        if attempt.state is State.COMMITTED:
            require(not missing, f"{attempt.name} is committed, and {', '.join(missing)} is lost")
        elif missing and len(missing) < len(attempt.written):
            raise Violation(f"half of {attempt.name} is there, and {', '.join(missing)} is not")

    def _counts(self, attempt: Attempt, there: set[str]) -> bool | None:
        """Whether an attempt is known to be committed."""
        if attempt.state is State.COMMITTED:
            return True
        if attempt.state is not State.COMMITTING or attempt.hopeless:
            return False
        return attempt.written[0].value in there if attempt.written else None

    def _tiled(self, group: str, place: Place, offset: int, there: set[str]) -> None:
        """The progress of what is committed leads from the first to where the group stands, without gap or overlap."""
        sure: dict[int, tuple[int, str]] = {}
        maybe: dict[int, tuple[int, str]] = {}
        for attempt in self.attempts.values():
            counts = self._counts(attempt, there)
            for each in attempt.progress:
                if (each.group, each.place) == (group, place) and counts is not False:
                    into = sure if counts else maybe
                    taken = sure.get(each.next)
                    require(
                        taken is None or not counts,
                        f"{group}: {attempt.name} and {taken[1] if taken else ''} both read up to {each.next}",
                    )
                    into[each.next] = each.first, attempt.name
        at = offset
        while at in sure or at in maybe:
            at = (sure.pop(at) if at in sure else maybe.pop(at))[0]
        require(at <= 0, f"{group}: {offset} of {place} is committed, but no client committed what leads to {at}")
        left = ", ".join(name for _, name in sure.values())
        require(not sure, f"{group}: stands at {offset} of {place}, without what {left} read")

    def _effects(self, group: str, inputs: Sequence[Record], offset: int, there: set[str]) -> None:
        """What the group has read has had its effect once, and the rest none."""
        effects: dict[str, str] = {}
        has_effects = False
        for value, (_, written) in self._written.items():
            if written.cause is None or written.cause[0] != group:
                continue
            has_effects = True
            if value in there:
                cause = written.cause[1]
                require(cause not in effects, f"{group}: {effects.get(cause)} and {value} are both effects of {cause}")
                effects[cause] = value
        for at, value in inputs if has_effects else ():
            if at < offset:
                require(value in effects, f"{group}: {value} at {at} was read, and had no effect")
            else:
                require(value not in effects, f"{group}: {effects.get(value)} is there, but {value} at {at} is unread")
