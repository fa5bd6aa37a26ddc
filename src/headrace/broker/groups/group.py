"""The state machine of one group.

A group goes round: *Empty* until a member joins, *PreparingRebalance* while members join the next generation,
*CompletingRebalance* while its leader divides the work, *Stable* until a member joins, leaves or times out.

    Empty ──join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance ──assignment stored──► Stable
      ▲                ▲    │                                              │                                      │
      └── none left ───┼────┘                                              │                                      │
                       └────────────── join, leave, silence ───────────────┴──────────────────────────────────────┘

Everything here is plain, synchronous code. A join or a sync returns a future, and each such future is answered exactly
once: by the group moving on, by its member being dropped, or by a later request of the same member taking its place.
Time comes from the loop that the host brings, the group's storage and member ids from the host itself.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from headrace.broker.groups.answers import answer_in_turns
from headrace.broker.groups.classic_state import ClassicState, Host
from headrace.broker.groups.deadline import Deadline
from headrace.broker.groups.member import Member
from headrace.broker.groups.members import GROUP_BYTES_MAX
from headrace.broker.groups.protocol import (
    Commit,
    Committer,
    Joined,
    JoinRequest,
    Leaver,
    Problem,
    State,
    Synced,
    SyncRequest,
)

log = structlog.get_logger("headrace.groups")

# A member in its first join cannot send heartbeats yet. If its client gave up and tried again, the ghost stays so long.
NEW_MEMBER_JOIN_SECONDS = 300.0


class Group(ClassicState):
    """A group of the classic protocol as its members change it."""

    def __init__(self, group_id: str, host: Host) -> None:
        super().__init__(group_id, host)
        # Done once it is stored that the group is empty.
        self._emptying: Future[Problem] | None = None
        # Members of this generation that have not asked for their assignment yet.
        self._unsynced: dict[str, None] = {}
        # While the first rebalance waits for more members: the wait under way, and how much of it may still follow.
        self._initial: tuple[float, float] | None = None
        self._newcomers = False
        self._join_deadline = Deadline(host.loop, self._join_time_is_up)
        self._sync_deadline = Deadline(host.loop, self._sync_time_is_up)

    # --- what members ask ---------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest) -> Future[Joined]:
        """Ask to be in the next generation."""
        answer: Future[Joined] = self._host.loop.create_future()
        problem = self._judge_join(request)
        if problem is not Problem.NONE:
            answer.set_result(Joined(problem=problem, member_id=request.member_id))
        elif not request.member_id:
            self._join_unknown(request, answer)
        elif request.member_id in self._pending:
            self._pending.pop(request.member_id).cancel()
            self._add(request, request.member_id, answer)
        else:
            self._join_known(request, self.roster.members[request.member_id], answer)
        return answer

    def sync(self, request: SyncRequest) -> Future[Synced]:
        """Ask for the assignment; the leader brings it."""
        answer: Future[Synced] = self._host.loop.create_future()
        problem = self._judge_sync(request)
        if problem is not Problem.NONE:
            answer.set_result(Synced(problem=problem))
            return answer
        member = self.roster.members[request.member_id]
        # An earlier sync of the same member, whose client has given up on it, is answered.
        member.answer_sync(Synced(problem=Problem.REBALANCE_IN_PROGRESS))
        self._unsynced.pop(member.member_id, None)
        if not self._unsynced:
            self._sync_deadline.cancel()
        if self.state is State.STABLE:
            self._touch(member)
            answer.set_result(self._synced(member))
            return answer
        member.sync = answer
        if member.member_id == self.roster.leader:
            given = dict(request.assignments)
            assignments = {member_id: given.get(member_id, b"") for member_id in self.roster.members}
            stored = partial(self._assignment_stored, self.generation, assignments)
            if sum(map(len, assignments.values())) > GROUP_BYTES_MAX:
                log.warning("the assignment of a group is too large", group=self.group_id, limit=GROUP_BYTES_MAX)
                stored(Problem.UNKNOWN_SERVER_ERROR)
            else:
                self._store(self.stored(assignments), stored)
        return answer

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> Problem:
        """Say that the member is alive, and learn whether the group is rebalancing."""
        problem = self.judge_member(member_id, instance_id)
        if problem is not Problem.NONE:
            return problem
        if generation != self.generation:
            return Problem.ILLEGAL_GENERATION
        self._touch(self.roster.members[member_id])
        return Problem.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Problem.NONE

    def leave(self, leavers: Sequence[Leaver]) -> list[Problem]:
        """Take members out; the answer to each."""
        problems = []
        dropped = False
        for leaver in leavers:
            member_id = self.roster.id_of(leaver)
            if member_id in self._pending:
                self._pending.pop(member_id).cancel()
                problem = Problem.NONE
            else:
                problem = self.judge_member(member_id, leaver.instance_id)
                if problem is Problem.NONE:
                    self._drop(self.roster.members[member_id], "left: " + leaver.reason)
                    dropped = True
            problems.append(problem)
        self._member_left(rebalance=dropped)
        return problems

    def judge_commit(self, member_id: str, instance_id: str | None, generation: int) -> Problem:
        """Whether offsets may be committed in this name; a member that may is alive."""
        if self.state is State.DEAD:
            return Problem.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is State.EMPTY:
            return Problem.NONE
        if generation < 0 and not member_id and instance_id is None:
            return Problem.UNKNOWN_MEMBER_ID
        problem = self.judge_member(member_id, instance_id)
        if problem is not Problem.NONE:
            return problem
        if generation != self.generation:
            return Problem.ILLEGAL_GENERATION
        if self.state is State.COMPLETING:
            # The member knows its generation but not yet its assignment: it must sync first.
            return Problem.REBALANCE_IN_PROGRESS
        self._touch(self.roster.members[member_id])
        return Problem.NONE

    def judge_commits(self, commits: Sequence[Commit], committer: Committer) -> list[Problem]:
        """Whether each may be committed in this name."""
        problem = self.judge_commit(committer.member_id, committer.instance_id, committer.generation)
        return [problem] * len(commits)

    # --- what others ask ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Start the sessions of restored members: each has its whole timeout to be heard of."""
        for member in self.roster:
            self._touch(member)
        if len(self.roster) > self._host.max_size:
            self._prepare(f"the group has more than {self._host.max_size} members")

    def kill(self) -> None:
        """End it: whatever waits is refused, and no timer is left."""
        for member in list(self.roster):
            self.roster.drop(member, Problem.COORDINATOR_NOT_AVAILABLE)
        for deadline in self._pending.values():
            deadline.cancel()
        self._pending.clear()
        self._join_deadline.cancel()
        self._sync_deadline.cancel()
        self._move(State.DEAD)

    # --- joining ------------------------------------------------------------------------------------------------------

    def _judge_join(self, request: JoinRequest) -> Problem:
        if self.state is State.DEAD:
            return Problem.COORDINATOR_NOT_AVAILABLE
        if not self._supports(request):
            return Problem.INCONSISTENT_GROUP_PROTOCOL
        pending = request.member_id in self._pending
        if request.member_id and not pending:
            problem = self.judge_member(request.member_id, request.instance_id)
            if problem is not Problem.NONE:
                return problem
        if self._has_room(request):
            return Problem.NONE
        if pending:
            self._pending.pop(request.member_id).cancel()
            self._member_left(rebalance=False)
        elif request.member_id:
            self._drop(self.roster.members[request.member_id], "the group is full", Problem.GROUP_MAX_SIZE_REACHED)
            self._member_left()
        return Problem.GROUP_MAX_SIZE_REACHED

    def _join_unknown(self, request: JoinRequest, answer: Future[Joined]) -> None:
        instance_id = request.instance_id
        member_id = self._host.draw_member_id(request.client_id if instance_id is None else instance_id)
        holder = None if instance_id is None else self.roster.holder(instance_id)
        if holder is not None:
            self._replace_static(request, self.roster.members[holder], member_id, answer)
        elif instance_id is None and request.needs_known_id:
            deadline = Deadline(self._host.loop, partial(self._pending_time_is_up, member_id))
            self._pending[member_id] = deadline
            deadline.set(request.session_timeout_ms / 1000)
            answer.set_result(Joined(problem=Problem.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(request, member_id, answer)

    def _join_known(self, request: JoinRequest, member: Member, answer: Future[Joined]) -> None:
        changed = list(member.protocols.items()) != list(dict(request.protocols).items())
        # A leader that joins a stable group wants a new division, for instance because a topic has grown.
        again = changed or (self.state is State.STABLE and member.member_id == self.roster.leader)
        if self.state is not State.PREPARING and not again:
            # The answer to its last join was lost: it is sent once more.
            self._touch(member)
            answer.set_result(self._joined(member))
            return
        self.roster.change_protocols(member, dict(request.protocols))
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        self.roster.await_join(member, answer)
        self._rebalance(f"member {member.member_id} joined again: {request.reason}")

    def _add(self, request: JoinRequest, member_id: str, answer: Future[Joined]) -> None:
        member = _member_of(request, member_id)
        member.is_new = True
        self._newcomers = True
        if not self.roster.members:
            self.protocol_type = request.protocol_type
        self.roster.enter(member)
        self.roster.await_join(member, answer)
        self._session(member).set(NEW_MEMBER_JOIN_SECONDS)
        self._rebalance(f"member {member_id} joined: {request.reason}")

    def _replace_static(self, request: JoinRequest, old: Member, member_id: str, answer: Future[Joined]) -> None:
        """The same instance is back under a new member id; the old one is fenced."""
        old_leader = self.roster.leader or ""
        member = _member_of(request, member_id)
        self.roster.replace(old, member)
        if old.member_id in self._unsynced:
            del self._unsynced[old.member_id]
            self._unsynced[member_id] = None
        self._touch(member)
        log.info("static member is back", group=self.group_id, instance=member.instance_id, member=member_id)
        if self.state is State.STABLE and self.roster.select_protocol() == self.protocol_name:
            assignments = {each.member_id: each.assignment for each in self.roster}
            # An older client that found itself the leader would divide anew: it is shown the id that it had.
            shown = None if request.may_skip_assignment else old_leader
            self._store(self.stored(assignments), partial(self._static_stored, member, shown, answer))
            return
        self.roster.await_join(member, answer)
        self._rebalance(f"static member {member.instance_id} joined: {request.reason}")

    def _static_stored(
        self, member: Member, shown_leader: str | None, answer: Future[Joined], problem: Problem
    ) -> None:
        if answer.done():
            return
        if problem is not Problem.NONE:
            # A restart would not know the new id: the member has to come again.
            log.warning("could not store a static member's return", group=self.group_id, problem=problem.name)
            answer.set_result(Joined(problem=problem))
        elif self.roster.members.get(member.member_id) is not member:
            answer.set_result(Joined(problem=Problem.UNKNOWN_MEMBER_ID, member_id=member.member_id))
        else:
            answer.set_result(self._joined(member, returned=True, shown_leader=shown_leader))

    # --- rebalancing --------------------------------------------------------------------------------------------------

    def _rebalance(self, reason: str) -> None:
        """Start a rebalance, or see whether the one under way is complete."""
        if self.state is State.PREPARING:
            self._complete_join_if_all_are_here()
        else:
            self._prepare(reason)

    def _prepare(self, reason: str) -> None:
        log.info("rebalance", group=self.group_id, generation=self.generation, state=self.state.value, reason=reason)
        if self.state is State.COMPLETING:
            self._answer_syncs(Problem.REBALANCE_IN_PROGRESS)
        self._sync_deadline.cancel()
        self._unsynced.clear()
        first = self.state is State.EMPTY
        self._move(State.PREPARING)
        if not first:
            self._join_deadline.set(self.roster.rebalance_seconds())
            self._complete_join_if_all_are_here()
            return
        delay = min(self._host.initial_delay, self.roster.rebalance_seconds())
        if delay <= 0:
            self._complete_join()
            return
        self._newcomers = False
        self._initial = (delay, self.roster.rebalance_seconds() - delay)
        self._join_deadline.set(delay)

    def _complete_join_if_all_are_here(self) -> None:
        if self._initial is None and self.roster.joining == len(self.roster) and not self._pending:
            self._complete_join()

    def _join_time_is_up(self) -> None:
        if self._initial is not None and self._newcomers and self._initial[1] > 0:
            delay = min(self._initial)
            self._newcomers = False
            self._initial = (delay, self._initial[1] - delay)
            self._join_deadline.set(delay)
        else:
            self._complete_join()

    def _complete_join(self) -> None:
        self._initial = None
        self._join_deadline.cancel()
        # A static member is given its session timeout to come back; a dynamic one had its chance.
        for member in [each for each in self.roster if each.join is None and each.instance_id is None]:
            self._drop(member, "did not rejoin in time")
        if self.roster.members and not self.roster.elect_leader():
            self._join_deadline.set(self.roster.rebalance_seconds())
            return
        self.generation += 1
        log.info("generation", group=self.group_id, generation=self.generation, members=len(self.roster))
        if not self.roster.members:
            self.protocol_name = None
            self._move(State.EMPTY)
            self._emptying = self._host.loop.create_future()
            self._store(self.stored({}), partial(self._emptiness_stored, self._emptying))
            return
        self.protocol_name = self.roster.select_protocol()
        self._move(State.COMPLETING)
        self._emptying = None
        self._unsynced = dict.fromkeys(self.roster.members)
        self._sync_deadline.set(self.roster.rebalance_seconds())
        self.roster.joining = 0
        answers = []
        for member in self.roster:
            member.is_new = False
            self._touch(member)
            answer, member.join = member.join, None
            if answer is not None:
                answers.append((answer, self._joined(member)))
        renamed = self._renamed()
        if renamed is None:
            answer_in_turns(self._host.loop, iter(answers))
        else:
            # A restart that knew a static member by its former id would fence it, for which clients give up.
            self._store(renamed, partial(self._ids_stored, answers))

    def _ids_stored(self, answers: Sequence[tuple[Future[Joined], Joined]], problem: Problem) -> None:
        if problem is not Problem.NONE:
            log.warning("could not store the ids of static members", group=self.group_id, problem=problem.name)
            answers = [(answer, Joined(problem=problem, member_id=joined.member_id)) for answer, joined in answers]
        answer_in_turns(self._host.loop, iter(answers))

    async def saved(self) -> Problem:
        """Wait until it is durable that the group is empty, if it is; whether that failed. While others stay, what
        remains of a member that left is written with the next generation, as in Kafka."""
        if self._emptying is None:
            return Problem.NONE
        return await asyncio.shield(self._emptying)

    def _emptiness_stored(self, emptying: Future[Problem], problem: Problem) -> None:
        if not emptying.done():
            emptying.set_result(problem)
        if problem is not Problem.NONE:
            log.warning("could not store that a group is empty", group=self.group_id, problem=problem.name)

    def _joined(self, member: Member, *, returned: bool = False, shown_leader: str | None = None) -> Joined:
        leads = shown_leader is None and member.member_id == self.roster.leader
        return Joined(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=(self.roster.leader or "") if shown_leader is None else shown_leader,
            members=self.roster.for_leader(self.protocol_name) if leads else (),
            skip_assignment=returned and leads,
        )

    # --- syncing ------------------------------------------------------------------------------------------------------

    def _assignment_stored(self, generation: int, assignments: Mapping[str, bytes], problem: Problem) -> None:
        if self.state is not State.COMPLETING or generation != self.generation:
            return  # the members have changed meanwhile, and the waiting syncs have been answered
        if problem is not Problem.NONE:
            self._answer_syncs(problem)
            self._prepare(f"the assignment could not be stored: {problem.name}")
            return
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
        self._move(State.STABLE)
        self._answer_syncs(Problem.NONE)

    def _answer_syncs(self, problem: Problem) -> None:
        answers = []
        for member in self.roster:
            if problem is not Problem.NONE:
                member.assignment = b""
            answer, member.sync = member.sync, None
            if answer is not None:
                answers.append((answer, Synced(problem=problem) if problem else self._synced(member)))
                self._touch(member)
        answer_in_turns(self._host.loop, iter(answers))

    def _synced(self, member: Member) -> Synced:
        return Synced(protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment)

    def _sync_time_is_up(self) -> None:
        late = [self.roster.members[each] for each in self._unsynced if each in self.roster]
        for member in late:
            self._drop(member, "did not sync in time")
        if late:
            self._member_left()

    # --- coming, going, falling silent --------------------------------------------------------------------------------

    def _drop(self, member: Member, why: str, problem: Problem = Problem.UNKNOWN_MEMBER_ID) -> None:
        """Take a member out; the caller then calls `_member_left`."""
        log.info("member goes", group=self.group_id, member=member.member_id, why=why)
        self._unsynced.pop(member.member_id, None)
        self.roster.drop(member, problem)

    def _member_left(self, *, rebalance: bool = True) -> None:
        """See what follows. A pending member has no share that others would have to take over."""
        if rebalance and self.state in (State.STABLE, State.COMPLETING):
            self._prepare("a member went")
        elif self.state is State.PREPARING:
            self._complete_join_if_all_are_here()
        if self.is_vacant:
            self._host.vacated(self)

    def _session(self, member: Member) -> Deadline:
        if member.session is None:
            member.session = Deadline(self._host.loop, partial(self._session_is_over, member))
        return member.session

    def _touch(self, member: Member) -> None:
        self._session(member).set(member.session_timeout_ms / 1000)

    def _session_is_over(self, member: Member) -> None:
        if not member.is_new and (member.join is not None or member.sync is not None):
            return  # it waits for the group, not the group for it; its session starts again with the answer
        self._drop(member, "was not heard of in time")
        self._member_left()

    def _pending_time_is_up(self, member_id: str) -> None:
        del self._pending[member_id]
        self._member_left(rebalance=False)


def _member_of(request: JoinRequest, member_id: str) -> Member:
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        dict(request.protocols),
    )
