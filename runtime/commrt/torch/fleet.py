"""Moves one optimizer's buckets, on all ranks alike, whatever befalls one of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from commrt.api import session
from commrt.core.bucketing import BucketPolicy, policy_of
from commrt.core.growth import START, Growth
from commrt.engine.handle import Handle
from commrt.errors import ArgumentError, CommError, MismatchError, RemoteError
from commrt.session import Session
from commrt.torch.buckets import Bucket, Way
from commrt.torch.cards import Card, Entry, difference, merge, planned_alike
from commrt.torch.census import make_card, warn_of_difference
from commrt.torch.naming import Named
from commrt.torch.options import Options
from commrt.torch.patience import Patience
from commrt.torch.plan import Plan, make_plan, recut, reordered
from commrt.torch.table import Table
from commrt.torch.tuner import Tuner
from commrt.transports.base import Flat

log = logging.getLogger("commrt.torch")

_RECENT = 64
"""Buckets of others that may have ended among those of a cycle."""

_LATE = " (too late for the reduction that it belongs to: the next one fails in its place)"


@dataclass(slots=True)
class Draft:
    """A plan that the other ranks have not confirmed: `card` gathers what they have to say."""

    plan: Plan
    tuner: Tuner
    card: Handle
    news: str


class Names:
    """Prefixes of an optimizer's names. Every cycle that fails or plans anew ends an epoch.

    `part` sets apart what is launched by a plan that has just been made.
    """

    def __init__(self, number: Callable[[], int]) -> None:
        self.part = ""
        self.number = number
        self._epoch = 0
        self._ends = False
        self.joins = 0

    def prefix(self, part: str | None = None) -> str:
        """Return the prefix, with another part if given."""
        joins = f"/join.{self.joins}" if self.joins else ""
        epoch = f"/{self._epoch}" if self._epoch else ""
        return f"optimizer.{self.number()}{joins}{epoch}{self.part if part is None else part}"

    def end_epoch(self) -> None:
        """Let the epoch end with this cycle."""
        self._ends = True

    def end_cycle(self) -> None:
        """Begin a new epoch, if it is time to."""
        self._epoch += self._ends
        self._ends, self.part = False, ""

    def restart(self, joins: int) -> None:
        """Count from the beginning, after so many joins."""
        self.part, self._epoch, self._ends, self.joins = "", 0, False, joins


class Fleet:
    """Plans and moves the buckets of one optimizer. Thread safety: one thread at a time.

    In a cycle every rank uses the name of every bucket once: it launches the bucket or reports
    that it can't. A rank on which something has changed since the plan was made drafts a new one,
    launches that under new names, and sends its card under the old name of bucket 0. If all ranks
    do so, they compare; if not, the kinds of operation differ and the cycle fails everywhere. A
    cycle that fails does so on every rank, and names change with it, so that what is left of it
    meets nobody.
    """

    def __init__(self, table: Table, options: Options, number: Callable[[], int]) -> None:
        self.plan: Plan | None = None
        self.table = table
        self._options = options
        self._session: Session | None = None
        self._draft: Draft | None = None
        self._tuner = Tuner(None, False, enabled=False)
        self._names = Names(number)
        self._trouble = ""

    def describe(self) -> str:
        """Say in how many buckets gradients are reduced, and why."""
        if self.plan is None:
            return "nothing is planned yet"
        return f"{len(self.plan.buckets)} buckets; {self._tuner.text()}"

    def attach(self) -> bool:
        """Turn to the runtime there is; is it another one? Raises InitError if there is none.

        After a join it counts as another one: some ranks have not seen the last cycles.
        """
        now = session()
        if now is self._session and now.joins == self._names.joins:
            return False
        self._session, self.plan, self._draft = now, None, None
        self._tuner = Tuner(None, False, enabled=False)
        self._names.restart(now.joins)
        self._trouble = ""
        return True

    def alone(self) -> bool:
        """Is there nobody to reduce with?"""
        process_set = self._options.process_set()
        process_set.id()  # raises if init() does not know it
        rank = session().runtime.topology.rank
        return process_set.size() == 1 or rank not in process_set.ranks

    def news(self) -> str | None:
        """Say why ranks must plan anew; None if nothing has changed here."""
        if self._trouble:
            return self._trouble
        if self.plan is None:
            return "this rank plans its reductions"
        return self._growth(self.plan) or self.plan.change()

    def grown(self) -> bool:
        """Is there anything trainable that nobody has planned for?"""
        return self.plan is not None and self._growth(self.plan) is not None

    def draft(self, news: str) -> None:
        """Plan as things are here and ask the other ranks for theirs. Does not block.

        `news` says what has changed, for the case that it has not on all ranks. Raises
        ArgumentError for what can't be reduced; then the other ranks must be told.
        """
        self.table.extend()
        card = make_card(self.table, self._options, self.plan, self._trouble)
        plan = self._make(card.entries)
        way = self._way()
        handle = way.session.exchange_async(card, way.name(0), way.process_set)
        self._draft = Draft(plan, self._make_tuner(plan), handle, news)
        self._names.part = "/new"

    def confirm(self) -> bool:
        """Wait for what the other ranks say to a draft; had it to be planned again?

        Raises MismatchError if the ranks can't plan alike.
        """
        return self._draft is not None and self._confirm(self._draft)

    def current(self) -> Plan | None:
        """Return the plan by which buckets are launched in this cycle."""
        return self.plan if self._draft is None else self._draft.plan

    def launch(self, bucket: Bucket) -> None:
        """Submit a bucket. Does not block. If it raises, the other ranks must be told."""
        bucket.launch(self._way())

    def settle(self, order: Sequence[int] = ()) -> None:
        """Launch what is not launched, wait for all. `order`: which gradients came first.

        Raises the error that says most, once nothing is in flight any more.
        """
        self._vote(order)
        errors = self._launch_rest()
        if self.confirm():
            self._vote(order)
            errors = self._launch_rest()
        for bucket in self._buckets():
            error = bucket.error()
            if error is not None:
                errors.append(error)
                # Others may have planned otherwise and know nothing of the rest.
                rest = self._buckets()[1:] if bucket.number == 0 else ()
                self._report((other.number for other in rest), str(error))
        if errors:
            error = _clearest(errors)
            if isinstance(errors[0], MismatchError):
                self.plan = None  # so that all send their cards, and can say what differs
            self._failed()
            self._answer(error)
            raise error
        self._tune()

    def wait(self, patience: Patience, order: Sequence[int]) -> bool:
        """Wait for all buckets, which are launched; False if that is of no use."""
        self._vote(order)
        self._launch_rest()
        if self._draft is not None:
            card = self._draft.card
            if not patience.wait([card], self._names.number(), self._way()):
                return False
            if card.exception() is not None or not _launched_alike(card.wait()):
                return True  # nobody may have launched the same: `settle` knows what to do
        handles = [handle for b in self._buckets() if (handle := b.handle()) is not None]
        return patience.wait(handles, self._names.number(), self._way())

    def launched(self) -> list[Named]:
        """Return the parameters whose gradients are on their way."""
        return [(m.name, m.param) for b in self._buckets() if b.launched() for m in b.members]

    def adopt(self) -> None:
        """Make the reduced gradients the parameters' own."""
        for bucket in self._buckets():
            bucket.adopt()

    def unspent(self) -> bool:
        """Has some parameter still the gradient that was reduced last?"""
        return any(b.holds(m.param) for b in self._buckets() for m in b.members)

    def fail(self, text: str, over: bool) -> None:
        """End the cycle with an error on every rank. Blocks until nothing is in flight.

        If it is over and went well, the others' next one fails at once, and ours when it comes:
        ranks stay in step.
        """
        if over or not self._spoil(text):
            if not over:
                self._tune()  # as the others do
            self.reset()
            self._trouble = text
            count = len(self._buckets()) + self._tuner.due()
            self._report(range(count), f"{text}{_LATE}")
        self._failed()

    def reset(self) -> None:
        """Be ready for the next cycle. Nothing may be in flight."""
        for bucket in self._buckets():
            bucket.reset()
        self._draft = None
        self._tuner.ballot = None
        self._names.end_cycle()
        change = self._tuner.take_change()
        if change is not None and self.plan is not None:
            policy = self._policy(change.nbytes)
            self.plan = (
                reordered(self.plan, change.order, self._options, policy, self._allocate)
                if change.order else recut(self.plan, self._options, policy)
            )  # fmt: skip

    def _growth(self, plan: Plan) -> str | None:
        self.table.extend()
        if len(self.table) > len(plan.members) + len(plan.resting):
            return "parameters were added"
        return plan.thawed()

    def _buckets(self) -> tuple[Bucket, ...]:
        plan, ballot = self.current(), self._votes().ballot
        if plan is None:
            return ()
        return plan.buckets if ballot is None else (*plan.buckets, ballot)

    def _votes(self) -> Tuner:
        return self._tuner if self._draft is None else self._draft.tuner

    def _vote(self, order: Sequence[int]) -> None:
        """Have this cycle's ballot, if it has one, be launched like a bucket."""
        plan = self.current()
        if plan is not None:
            self._votes().open(plan, order)

    def _way(self, part: str | None = None) -> Way:
        assert self._session is not None
        return Way(self._session, self._options.process_set(), self._names.prefix(part))

    def _make(self, entries: tuple[Entry, ...]) -> Plan:
        params = {name: (i, param) for i, (name, param) in enumerate(self.table.named)}
        return make_plan(entries, params, self._options, self._policy(), self._allocate)

    @staticmethod
    def _allocate(nbytes: int) -> Flat:
        return session().runtime.allocate(nbytes)

    def _choice(self) -> int | str:
        config, own = session().runtime.config, self._options.bucket
        choice = config.bucket if own is None else own
        return config.fusion_limit() if choice == "auto" and not self._options.tunes() else choice

    def _policy(self, nbytes: int = 0) -> BucketPolicy:
        """Return what cuts gradients into buckets: as was chosen, or of a size that was found."""
        first, ranks = session().runtime.config.first_bucket, self._options.process_set().size()
        return policy_of(nbytes or self._choice(), first, ranks)

    def _make_tuner(self, plan: Plan) -> Tuner:
        leads = session().runtime.topology.rank == self._options.process_set().ranks[0]
        nbytes = sum(row.arena.flat.nbytes for row in plan.rows)
        grows = self._choice() == "auto" and nbytes > START  # else there is but one bucket
        growth = Growth(nbytes) if grows else None
        return Tuner(growth, leads, enabled=bool(plan.rows) and self._options.tunes())

    def _tune(self) -> None:
        """Learn from a cycle that went well."""
        assert self.plan is not None
        tuner = self._tuner
        if tuner.observes():
            names = {self._way().name(bucket.number) for bucket in self.plan.buckets}
            recent = session().runtime.trace()[-_RECENT - len(names) :]
            last = {name: r for r in recent for name in r.names if name in names}
            tuner.observe(list(last.values()))
        if tuner.end_cycle():
            self._names.end_epoch()
            log.info("%s: %s", self._names.prefix(""), tuner.text())

    def _launch_rest(self) -> list[BaseException]:
        errors: list[BaseException] = []
        for bucket in self._buckets():
            if not bucket.launched():
                try:
                    self.launch(bucket)
                except CommError as exc:
                    errors.append(exc)
                    self._report([bucket.number], str(exc))
        return errors

    def _confirm(self, draft: Draft) -> bool:
        prefix = self._names.prefix("")
        error = draft.card.exception()
        if isinstance(error, MismatchError):
            text = f"{prefix}: {draft.news}, here but not on every rank"
            error = MismatchError(f"{text}; do the same on all ranks. {error}")
        if error is not None:
            self._abandon(f"{prefix}: {draft.news}", isinstance(error, MismatchError))
            self._answer(error)
            raise error
        cards = draft.card.wait()
        wrong = difference(cards)
        if wrong is not None:
            self._abandon(wrong)
            raise MismatchError(f"{prefix}: {wrong}")
        if self.plan is None:
            warn_of_difference(cards, session().runtime.topology.rank)
        alike = planned_alike(cards)
        if not alike:
            self._withdraw("the ranks plan again")
            draft.plan = self._make(merge(cards))
            draft.tuner = self._make_tuner(draft.plan)
            self._names.part = "/again"
        self.plan, self._draft, self._trouble = draft.plan, None, ""
        self._tuner = draft.tuner
        self._names.end_epoch()
        return not alike

    def _spoil(self, text: str) -> bool:
        """Report what is not launched, wait for the rest; has the cycle failed by that?"""
        if self._draft is not None or self.plan is None:
            self._report([0], text, "")
            self._withdraw(text)
            return True
        buckets = self.plan.buckets
        left = [bucket.number for bucket in buckets if not bucket.launched()]
        if self._tuner.due() and self._tuner.ballot is None:
            left.append(len(buckets))
        self._report(left, text)
        errors = [bucket.error() for bucket in self._buckets()]
        return bool(left) or any(error is not None for error in errors)

    def _answer(self, error: BaseException) -> None:
        """Send a card for the cycle in which a rank with a late error will send its own."""
        if _LATE in str(error) and isinstance(error, RemoteError):
            way = self._way()
            way.session.exchange_async(Card((), ""), way.name(0), way.process_set)
            self._failed()

    def _abandon(self, text: str, forget: bool = False) -> None:
        """End a cycle that can't be planned. `forget`: all send their cards in the next one."""
        self._withdraw(text)
        self._trouble = ""
        self._failed()
        if forget:
            self.plan = None

    def _withdraw(self, text: str) -> None:
        """Let what is launched end, for nobody may have launched the same."""
        buckets, plan = self._buckets(), self.current()
        if plan is not None:
            self._report(range(len(plan.buckets) + self._votes().due()), text)
        if self.plan is not None and self._draft is not None:  # those without news wait for these
            self._report(range(1, len(self.plan.buckets) + self._tuner.due()), text, "")
        for bucket in buckets:
            bucket.error()
            bucket.reset()

    def _failed(self) -> None:
        self._names.end_epoch()
        self.reset()

    def _report(self, numbers: Iterable[int], text: str, part: str | None = None) -> None:
        way = self._way(part)
        for number in numbers:
            way.session.runtime.report(way.process_set.id(), way.name(number), text)


def _launched_alike(cards: Mapping[int, Card]) -> bool:
    return difference(cards) is None and planned_alike(cards)


def _clearest(errors: list[BaseException]) -> BaseException:
    """Pick our own error, or what another rank says of its own, before a mere difference."""
    for kind in (ArgumentError, RemoteError):
        for error in errors:
            if isinstance(error, kind):
                return error
    first = errors[0]
    if isinstance(first, MismatchError) and "allgather" in str(first):
        return MismatchError(
            f"{first}; a rank that sends an allgather here has found a change or a fault, which "
            "its own error names"
        )
    return first
