"""The tables.  Times are seconds since the epoch by the database's clock; relationships load only on request."""

import enum
import json
import math
import re
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    and_,
    case,
    false,
    select,
    text,
    true,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, declared_attr, mapped_column, relationship

from kernels.cases import Metric
from service.domain.access import Scope
from service.domain.metrics import SeriesKey, metric_of, print_case
from service.domain.notices import EventKind
from service.domain.states import (
    ActorKind,
    BaselineKind,
    Better,
    CellState,
    Equal,
    FactsState,
    ForgeKind,
    FoundBy,
    GateAction,
    Missing,
    MovedBy,
    NoticeState,
    Origin,
    OutboxState,
    PointState,
    Purpose,
    RegressionState,
    Rounds,
    RunState,
    SearchState,
    TargetKind,
)
from service.errors import BadInput

Key = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER counts up by itself in SQLite
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # PostgreSQL refuses the first, UTF-8 the others


def storable(value: Any) -> Any:
    """Text, or something to be JSON, as every database takes it: what a build or a commit says may hold any bytes."""
    match value:
        case str():
            return _UNSTORABLE.sub("\ufffd", value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {storable(key) if isinstance(key, str) else key: storable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [storable(inner) for inner in value]
        case _:
            return value


class AnyText(TypeDecorator[str]):
    """Text from anywhere."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Dialect) -> Any:
        return storable(value)


class Unstorable(BadInput, DontWrapMixin):  # the engine would make another error of it
    """A name with a character that a database refuses."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text[:80]!r} has a NUL or half of a surrogate pair, which no database stores: leave it out."
        )


class ShortText(TypeDecorator[str]):
    """A name, of at most so many characters.  Raises Unstorable: with another character it would be another name."""

    impl = String
    cache_ok = True
    python_type = str

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        if value is not None and _UNSTORABLE.search(value):
            raise Unstorable(value)
        return value


class AnyJSON(TypeDecorator[Any]):
    """JSON from anywhere; numbers that it has no word for become null."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Dialect) -> Any:
        return storable(value)


class OptionalJSON(AnyJSON):
    """JSON whose None is NULL, and not the word null."""

    cache_ok = True

    def __init__(self) -> None:
        super().__init__(none_as_null=True)


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {
        dict[str, Any]: AnyJSON,
        list[str]: AnyJSON,
        list[Any]: AnyJSON,
        str: AnyText,
        float: Float(53),
    }


def _enum(kind: type[enum.StrEnum], length: int = 32) -> Enum:
    """Stored as its value in plain text, so that a new member needs no change of schema."""
    return Enum(
        kind, native_enum=False, create_constraint=False, length=length, values_callable=lambda e: [m.value for m in e]
    )


def _large(*of: Any) -> MappedColumn[Any]:
    """A deferred column: lists never load it, only `undefer` or an access in an open session does."""
    return mapped_column(*of, deferred=True)


def _references(name: str, column: str) -> Index:
    """The index of a foreign key that may be null, for those who delete a row that it refers to."""
    there = text(f"{column} IS NOT NULL")
    return Index(name, column, sqlite_where=there, postgresql_where=there)


# What the targets of the sample have instead of a location, in the present version and in an older one.
SAMPLE_LOCATIONS = (
    "measured on an NVIDIA H200 on 2026-11-28, and loaded as a sample",
    "measured on an NVIDIA H200 on 2026-11-22, and loaded as a sample",
)


class Target(Base):
    """A watched repository or package, with its recipe of now."""

    __tablename__ = "targets"
    __table_args__ = (_references("ix_targets_recipe", "recipe_id"), Index("ix_targets_poll", "poll_at"))
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    name: Mapped[str] = mapped_column(ShortText(80), unique=True)
    kind: Mapped[TargetKind] = mapped_column(_enum(TargetKind))
    location: Mapped[str]  # URL or folder of the repository; index URL or folder of wheels
    package: Mapped[str | None]  # the distribution's name, for packages
    branch: Mapped[str | None]  # the mainline's name, for repositories
    forge: Mapped[str | None]  # the repository's path on its forge, when there is one: "owner/name"
    forge_kind: Mapped[ForgeKind | None] = mapped_column(_enum(ForgeKind))  # null exactly where `forge` is
    trusted: Mapped[bool] = mapped_column(default=False)
    allow_unsandboxed: Mapped[bool] = mapped_column(default=False)
    recipe_from_branch: Mapped[bool] = mapped_column(default=False)
    recipe_id: Mapped[int | None] = mapped_column(ForeignKey("recipes.id", use_alter=True))
    created_at: Mapped[float]
    poll_at: Mapped[float] = mapped_column(default=0.0)
    poll_failures: Mapped[int] = mapped_column(default=0)
    poll_error: Mapped[str | None]
    paused_at: Mapped[float | None]  # no new revisions are taken since then
    forge_paused_until: Mapped[float] = mapped_column(default=0.0)  # nothing is sent to its forge before
    forge_error: Mapped[str | None]  # why
    mirror_bytes: Mapped[int | None] = mapped_column(BigInteger)  # of control's copy of the repository
    private: Mapped[bool] = mapped_column(default=False)  # only those who were granted it know of it
    recipe: Mapped["RecipeRow | None"] = relationship(lazy="raise", foreign_keys=[recipe_id])

    @property
    def is_sample(self) -> bool:
        """Whether it is only there to be looked at: nobody has to act on it, and it is counted apart."""
        return self.location in SAMPLE_LOCATIONS


# The ids of the sample's targets, for queries that count without them.
SAMPLES = select(Target.id).where(Target.location.in_(SAMPLE_LOCATIONS))


class RecipeRow(Base):
    """One version of a target's recipe.  Runs and verdicts keep the version that made them."""

    __tablename__ = "recipes"
    __table_args__ = (UniqueConstraint("target_id", "digest"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    digest: Mapped[str] = mapped_column(ShortText(64))
    text: Mapped[str]
    adapters: Mapped[dict[str, Any]]  # file name -> source, which contenders import next to the revision
    created_at: Mapped[float]


_UNPROCESSED = text("processed_at IS NULL")


class Delivery(Base):
    """A webhook as it came, stored before it is understood."""

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_waiting", "received_at", sqlite_where=_UNPROCESSED, postgresql_where=_UNPROCESSED),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    guid: Mapped[str] = mapped_column(ShortText(80), unique=True)
    event: Mapped[str] = mapped_column(ShortText(40))
    forge_kind: Mapped[ForgeKind] = mapped_column(_enum(ForgeKind), default=ForgeKind.GITHUB, server_default="github")
    body: Mapped[bytes] = mapped_column(LargeBinary)
    received_at: Mapped[float]
    processed_at: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(default=0)
    outcome: Mapped[str | None]  # one sentence: what was done, or why nothing was


class WriteProbe(Base):
    """Rows of processes that show when they could last write: the first of /readyz, the second of control."""

    __tablename__ = "write_probes"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    written_at: Mapped[float]


class PushRow(Base):
    """One report that commits appeared: a webhook delivery, a poll or a command."""

    __tablename__ = "pushes"
    __table_args__ = (Index("ix_pushes_target", "target_id"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    origin: Mapped[Origin] = mapped_column(_enum(Origin))
    head: Mapped[str] = mapped_column(ShortText(64))
    pull: Mapped[int | None]
    delivery_id: Mapped[int | None] = mapped_column(ForeignKey("deliveries.id"))
    created_at: Mapped[float]


class Pull(Base):
    """A pull request: what was recorded of it last."""

    __tablename__ = "pulls"
    __table_args__ = (UniqueConstraint("target_id", "number"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    number: Mapped[int]
    head: Mapped[str | None] = mapped_column(ShortText(64))  # None until one was recorded
    version: Mapped[int] = mapped_column(default=0)  # raised by everyone who records something of it
    updated_at: Mapped[float | None]  # by the forge's clock, at the newest delivery
    closed_at: Mapped[float | None]  # when it was closed or merged
    merged_as: Mapped[str | None] = mapped_column(ShortText(64))  # its commit on the mainline
    accepted_head: Mapped[str | None] = mapped_column(ShortText(64))  # a head that is slower, and accepted
    accepted_by: Mapped[str | None] = mapped_column(ShortText(80))
    accepted_why: Mapped[str | None]


_ASIDE = text("ordinal IS NULL")


class Revision(Base):
    """One commit of a repository, or one release of a package (`sha` is then its version)."""

    __tablename__ = "revisions"
    __table_args__ = (
        UniqueConstraint("target_id", "sha"),
        Index("ix_revisions_mainline", "target_id", "ordinal"),
        Index("ix_revisions_aside", "target_id", "id", sqlite_where=_ASIDE, postgresql_where=_ASIDE),
        Index("ix_revisions_committed", "target_id", "committed_at", "id"),
        Index("ix_revisions_sha", "sha"),  # of any target
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    sha: Mapped[str] = mapped_column(ShortText(64))
    parent: Mapped[str | None] = mapped_column(ShortText(64))  # first parent, or the release before
    ordinal: Mapped[int | None]  # place on the mainline, oldest 0; None off it
    subject: Mapped[str]
    author: Mapped[str]
    committed_at: Mapped[float]
    paths: Mapped[list[str]]  # changed against the first parent; of very many only the first
    target: Mapped[Target] = relationship(lazy="raise")

    @property
    def short(self) -> str:
        return self.sha[:10] if len(self.sha) >= 40 else self.sha


_STEP = text("bisection_id IS NOT NULL")
_OF_PULL = text("pull IS NOT NULL")
_UNNOTIFIED = text("notified_state <> state")
# As written in its index, which a query with parameters would not use.
UNSCANNED = text("scanned_at IS NULL AND state = 'done' AND purpose = 'watch' AND pull IS NULL")
UNFINISHED = text("state IN ('queued', 'leased')")
UNSENT = text("state = 'waiting'")
AWAITS_SECOND = text("awaits_second")

_HAS_SAMPLES, _HAS_FACTS = text("has_samples"), text("has_facts")
_SHARE = ("target_id", "device", "priority", "only_worker")  # the runs that take turns with all others of the device


class Run(Base):
    """One revision to be measured on one device.  This row is the queue."""

    __tablename__ = "runs"
    __table_args__ = (
        # What waits for a worker that is named is apart from what any of the device takes.
        Index("ix_runs_queue", "device", "state", "only_worker", "turn", "priority", "id"),
        Index("ix_runs_share", *_SHARE, "turn", sqlite_where=UNFINISHED, postgresql_where=UNFINISHED),
        # Strips of revisions are read from this alone: the rows themselves are long.
        Index("ix_runs_revision", "revision_id", "device", "pull", "purpose", "state"),
        Index("ix_runs_state", "state", "id"),  # the newest of a state, and the few that are leased
        Index("ix_runs_of_target", "target_id", "id"),  # the newest of a target, of any device and purpose
        Index("ix_runs_worker", "worker", "finished_at"),  # what else happened on a machine lately
        Index("ix_runs_calibrations", "only_worker", "target_id", "created_at"),  # of all others no worker is named
        Index("ix_runs_unnotified", "id", sqlite_where=_UNNOTIFIED, postgresql_where=_UNNOTIFIED),
        Index("ix_runs_bisection", "bisection_id", sqlite_where=_STEP, postgresql_where=_STEP),
        Index("ix_runs_ended", "state", "finished_at"),  # what failed lately
        Index("ix_runs_unscanned", "state", "purpose", sqlite_where=UNSCANNED, postgresql_where=UNSCANNED),
        Index("ix_runs_finished", "finished_at"),
        Index("ix_runs_second", "finished_at", sqlite_where=AWAITS_SECOND, postgresql_where=AWAITS_SECOND),
        Index("ix_runs_samples", "finished_at", sqlite_where=_HAS_SAMPLES, postgresql_where=_HAS_SAMPLES),
        Index("ix_runs_facts", "finished_at", sqlite_where=_HAS_FACTS, postgresql_where=_HAS_FACTS),
        Index("ix_runs_target", "target_id", "device", "purpose", "state", "id"),  # the newest of a target
        Index("ix_runs_pull", "target_id", "pull", "id", sqlite_where=_OF_PULL, postgresql_where=_OF_PULL),
        Index("ix_runs_pulls", "target_id", "id", sqlite_where=_OF_PULL, postgresql_where=_OF_PULL),
        Index("ix_runs_recipe", "recipe_id", "revision_id"),  # SQLite takes it for runs of one revision, too
        _references("ix_runs_push", "push_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    dedupe: Mapped[str] = mapped_column(ShortText(200), unique=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    revision_id: Mapped[int] = mapped_column(ForeignKey("revisions.id"))
    baseline: Mapped[str | None] = mapped_column(
        ShortText(64)
    )  # sha compared with: the parent of one on the mainline, else the merge base
    recipe_id: Mapped[int] = mapped_column(ForeignKey("recipes.id"))
    push_id: Mapped[int | None] = mapped_column(ForeignKey("pushes.id"))
    pull: Mapped[int | None]
    device: Mapped[str] = mapped_column(ShortText(40))
    suite: Mapped[str] = mapped_column(ShortText(40))
    purpose: Mapped[Purpose] = mapped_column(_enum(Purpose), default=Purpose.WATCH)
    only_cases: Mapped[list[str] | None]  # of the suite; None for all
    only_worker: Mapped[str | None] = mapped_column(ShortText(120))  # no other worker takes it
    bisection_id: Mapped[int | None] = mapped_column(ForeignKey("bisections.id", use_alter=True))
    trusted: Mapped[bool]
    priority: Mapped[int]
    turn: Mapped[float] = mapped_column(default=0.0, server_default="0")  # see service.ledger.runs.queue
    state: Mapped[RunState] = mapped_column(_enum(RunState), default=RunState.QUEUED)
    attempt: Mapped[int] = mapped_column(default=0)
    max_attempts: Mapped[int] = mapped_column(default=3)
    worker: Mapped[str | None] = mapped_column(ShortText(120))
    lease_until: Mapped[float | None]
    losses: Mapped[int] = mapped_column(default=0)  # attempts that did not count
    not_before: Mapped[float] = mapped_column(default=0.0)  # waits in the queue until then
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    stage: Mapped[str | None]  # what is being done now, for people
    reason: Mapped[str | None]  # why it failed, was skipped, held, superseded or cancelled
    log: Mapped[str | None] = _large()  # the last lines of a build that failed
    sandboxed: Mapped[bool | None]
    stack_id: Mapped[int | None] = mapped_column(ForeignKey("stacks.id"))
    telemetry: Mapped[dict[str, Any] | None] = _large()
    last_good: Mapped[str | None] = mapped_column(
        ShortText(64)
    )  # last revision that was not slow, where the baseline is
    pinned: Mapped[str | None] = mapped_column(
        ShortText(64)
    )  # the pinned baseline: the last release, or what the recipe pins
    summary: Mapped[list[Any] | None] = _large()  # geometric means: see service.domain.verdicts.totals
    notified_state: Mapped[str] = mapped_column(ShortText(32), default="")  # the last state that was reported
    repeated: Mapped[bool] = mapped_column(default=False)  # its first session was discarded: its controls were off
    # Its worker was not calibrated: its times block nothing.
    provisional: Mapped[bool] = mapped_column(default=False, server_default=false())
    awaits_second: Mapped[bool] = mapped_column(default=False, server_default=false())  # a session that could decide it
    second_of: Mapped[int | None] = mapped_column(Key)  # the run whose open cases this session is to decide
    scanned_at: Mapped[float | None]  # when the histories of its cases were scanned with it
    # Whether its measurements still have them: see service.ledger.retention.
    has_samples: Mapped[bool] = mapped_column(default=True, server_default=true())
    has_facts: Mapped[bool] = mapped_column(default=True, server_default=true())
    target: Mapped[Target] = relationship(lazy="raise")
    revision: Mapped[Revision] = relationship(lazy="raise")
    recipe: Mapped[RecipeRow] = relationship(lazy="raise")
    stack: Mapped["Stack | None"] = relationship(lazy="raise")
    measurements: Mapped[list["Measurement"]] = relationship(lazy="raise", order_by="Measurement.id")
    verdicts: Mapped[list["VerdictRow"]] = relationship(lazy="raise", order_by="VerdictRow.id")

    @property
    def watched(self) -> bool:
        """Whether it is a run for the mainline.  Its revision may have left the mainline since."""
        return self.pull is None and self.purpose is Purpose.WATCH

    @property
    def code_decides(self) -> bool:
        """Whether equal code settles a case.  In a calibration the code is the same on purpose."""
        return self.purpose is not Purpose.CALIBRATION

    @property
    def build_failed(self) -> bool:
        """Whether the revision's build failed.  Without a log the machine failed, not the revision."""
        return self.state is RunState.FAILED and self.log is not None


# The order in which the queued runs of a device are taken.
QUEUE_ORDER = (Run.turn, Run.priority, Run.id)
# The same as `Run.watched` for a query.
WATCHED = and_(Run.pull.is_(None), Run.purpose == Purpose.WATCH)


class Attempt(Base):
    """One lease of a run: its worker, its times, and how it ended."""

    __tablename__ = "attempts"
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    worker: Mapped[str] = mapped_column(ShortText(120))
    started_at: Mapped[float]
    finished_at: Mapped[float | None]
    outcome: Mapped[str | None]
    lost: Mapped[bool] = mapped_column(default=False)  # its lease expired, and nobody knows why


class Stack(Base):
    """Versions of everything between a kernel and its time."""

    __tablename__ = "stacks"
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    versions: Mapped[dict[str, Any]]


class BuildLog(Base):
    """The output of a run's build; a note replaces the middle of a very long log."""

    __tablename__ = "build_logs"
    __table_args__ = (Index("ix_build_logs_made_at", "made_at"),)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True, autoincrement=False)
    packed: Mapped[bytes] = mapped_column(LargeBinary)  # zlib
    characters: Mapped[int]
    made_at: Mapped[float]


class CodeText(Base):
    """A text of compiled code, once for each target however many kernels have it."""

    __tablename__ = "code_texts"
    __table_args__ = (UniqueConstraint("target_id", "sha256"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    sha256: Mapped[str] = mapped_column(ShortText(64))
    packed: Mapped[bytes] = _large(LargeBinary)  # see service.domain.codefacts.texts
    bytes: Mapped[int]


class KernelTextRow(Base):
    """Which text a kernel of a contender had at a case: in a run, or in a facts check."""

    __tablename__ = "kernel_texts"
    __table_args__ = (
        Index("ix_kernel_texts_run", "run_id", "case"),
        Index("ix_kernel_texts_check", "check_id", "case"),
        Index("ix_kernel_texts_text", "text_id"),
        Index("ix_kernel_texts_made_at", "made_at"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int | None] = mapped_column(ForeignKey("runs.id"))
    check_id: Mapped[int | None] = mapped_column(ForeignKey("facts_checks.id"))
    text_id: Mapped[int] = mapped_column(ForeignKey("code_texts.id"))
    contender: Mapped[str] = mapped_column(ShortText(120))  # "head:norms"
    case: Mapped[str] = mapped_column(ShortText(120))
    arch: Mapped[str] = mapped_column(ShortText(16), default="")  # of a check
    number: Mapped[int]  # which kernel of the call
    kernel: Mapped[str]  # its name; empty for the code of a whole call
    kind: Mapped[str] = mapped_column(ShortText(16))
    made_at: Mapped[float]
    text: Mapped[CodeText] = relationship(lazy="raise")


class Measurement(Base):
    """The stored numbers of one contender at one case in one run."""

    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint("run_id", "contender", "case"),
        # A series and whole histories are read from these alone: the rows themselves are mostly samples.
        Index("ix_measurements_series", "case", "provider", "role", "run_id", "state", "median", "gb_s"),
        Index("ix_measurements_history", "run_id", "role", "state", "provider", "case", "median"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    contender: Mapped[str] = mapped_column(ShortText(120))  # "head:norms", unique in the run
    role: Mapped[str] = mapped_column(ShortText(16))
    provider: Mapped[str] = mapped_column(ShortText(80))
    case: Mapped[str] = mapped_column(ShortText(120))
    state: Mapped[CellState] = mapped_column(_enum(CellState))
    reason: Mapped[str | None]
    median: Mapped[float | None]  # in `unit`
    gb_s: Mapped[float | None]  # of the kernel metric alone
    trials: Mapped[int] = mapped_column(default=0)
    rounds: Mapped[int] = mapped_column(default=0)
    facts: Mapped[dict[str, Any]]
    samples: Mapped[bytes | None] = _large(LargeBinary)  # see pack()

    @property
    def unit(self) -> str:
        """Of the median and the samples: us, bytes or count."""
        return metric_of(self.case).unit


# As written in the indexes: the verdicts against the parent; of those of a run the few that changed.
AGAINST_PARENT = text("baseline_kind = 'parent'")
CHANGED = text("outcome IN ('regression', 'improvement') AND baseline_kind = 'parent'")


class VerdictRow(Base):
    """The verdict of the head against one baseline at one case in one run."""

    __tablename__ = "verdicts"
    __table_args__ = (
        UniqueConstraint("run_id", "provider", "case", "baseline_kind"),
        Index("ix_verdicts_changed", "run_id", sqlite_where=CHANGED, postgresql_where=CHANGED),
        # As that of measurements: to find the verdict of each run by itself was two thirds of reading a series.
        Index(
            "ix_verdicts_series",
            *("case", "provider", "run_id", "outcome", "ratio", "low", "high"),
            sqlite_where=AGAINST_PARENT,
            postgresql_where=AGAINST_PARENT,
        ),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    provider: Mapped[str] = mapped_column(ShortText(80))
    case: Mapped[str] = mapped_column(ShortText(120))
    baseline_kind: Mapped[BaselineKind] = mapped_column(_enum(BaselineKind, 16))
    baseline: Mapped[str | None] = mapped_column(ShortText(80))  # who that is: a commit or a provider
    outcome: Mapped[str] = mapped_column(ShortText(16))
    ratio: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    trials: Mapped[int] = mapped_column(default=0)
    rounds: Mapped[int] = mapped_column(default=0)
    confirmed: Mapped[bool] = mapped_column(default=False)
    behind_sota: Mapped[bool] = mapped_column(default=False)
    control: Mapped[float | None]  # the A/A control's ratio, for a comparison with the parent
    suspected: Mapped[bool] = mapped_column(default=False)  # the first trials looked like a change
    p: Mapped[float | None]  # of the fresh trials where there are any, else of the first
    q: Mapped[float | None]  # p among the family of the run (Benjamini-Hochberg)
    smallest_change: Mapped[float | None]  # the smallest relevant change that held here, relative
    doubt: Mapped[str | None] = mapped_column(
        ShortText(16)
    )  # a service.domain.verdicts.analysis.Doubt: what equal code says against it
    cause_kind: Mapped[str | None] = mapped_column(ShortText(16))  # a service.domain.attribution.causes.Kind
    cause_code: Mapped[str | None] = mapped_column(ShortText(32))  # a service.domain.attribution.causes.CauseCode
    cause_args: Mapped[dict[str, Any] | None]
    cause_text: Mapped[str | None]  # in words, of rows without a code
    cause_certain: Mapped[bool | None]  # the facts leave no alternative; None where there is no cause
    cause_by: Mapped[str | None] = mapped_column(
        ShortText(16)
    )  # a service.domain.attribution.explanations.By: what of the code explains it
    policy_id: Mapped[int | None] = mapped_column(ForeignKey("policies.id"))
    reason_code: Mapped[str | None] = mapped_column(ShortText(32))  # a service.domain.verdicts.reasons.ReasonCode
    reason_args: Mapped[dict[str, Any] | None]
    reason: Mapped[str | None]  # in words, of rows without a code
    known_before: Mapped[bool] = mapped_column(default=False)  # invalid or failed, as a revision before it
    quarantined_by: Mapped[str | None] = mapped_column(ShortText(80))  # who quarantined it: its change raises no alarm


class RunTotals(Base):
    """What a measured run came to, in numbers: pages of many runs would otherwise count its verdicts.

    `regression` to `removed` are its cases by outcome, against the parent and without the quarantined ones.
    """

    __tablename__ = "run_totals"
    __table_args__ = (
        Index("ix_run_totals_series", "target_id", "device", "at"),
        Index("ix_run_totals_at", "at"),
    )
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True, autoincrement=False)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    device: Mapped[str] = mapped_column(ShortText(40))
    purpose: Mapped[Purpose] = mapped_column(_enum(Purpose))
    stack_id: Mapped[int | None] = mapped_column(ForeignKey("stacks.id"))
    at: Mapped[float]  # when it was judged
    took_s: Mapped[float | None]  # of a run that was done at its first attempt
    regression: Mapped[int] = mapped_column(default=0)
    improvement: Mapped[int] = mapped_column(default=0)
    steady: Mapped[int] = mapped_column(default=0)
    inconclusive: Mapped[int] = mapped_column(default=0)
    invalid: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    new: Mapped[int] = mapped_column(default=0)
    removed: Mapped[int] = mapped_column(default=0)
    newly_broken: Mapped[int] = mapped_column(default=0)  # invalid or failed, and not so before
    slower_than_wrong: Mapped[int] = mapped_column(default=0, server_default="0")  # than a parent with wrong results
    behind: Mapped[int] = mapped_column(default=0)  # cases behind SOTA
    sota: Mapped[str | None] = mapped_column(ShortText(80))  # the provider that most cases were compared with
    sota_cases: Mapped[int] = mapped_column(default=0)  # with a kernel time of both
    sota_log: Mapped[float] = mapped_column(default=0.0)  # sum of the logarithms of their ratios to SOTA
    sota_digest: Mapped[str | None] = mapped_column(ShortText(16))  # which cases these are: equal ones can be compared
    copy_gb_s: Mapped[float | None]  # the ceiling of memory in its session
    seconds: Mapped[dict[str, float] | None] = mapped_column(OptionalJSON)  # by phase


class FactsCheck(Base):
    """A revision compiled without a GPU and compared with its baseline, once for all devices; a queue as well."""

    __tablename__ = "facts_checks"
    __table_args__ = (
        UniqueConstraint("revision_id", "recipe_id", "base"),
        Index("ix_facts_checks_queue", "state", "id"),
        Index("ix_facts_checks_target", "target_id"),
        Index("ix_facts_checks_recipe", "recipe_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    revision_id: Mapped[int] = mapped_column(ForeignKey("revisions.id"))
    recipe_id: Mapped[int] = mapped_column(ForeignKey("recipes.id"))
    base: Mapped[str] = mapped_column(ShortText(64))  # sha compared with; empty where there is none
    trusted: Mapped[bool]
    state: Mapped[FactsState] = mapped_column(_enum(FactsState), default=FactsState.QUEUED)
    attempt: Mapped[int] = mapped_column(default=0)
    lease_until: Mapped[float | None]
    not_before: Mapped[float] = mapped_column(default=0.0)
    created_at: Mapped[float]
    finished_at: Mapped[float | None]
    reason: Mapped[str | None]  # why there are no findings
    findings: Mapped[dict[str, Any] | None]  # a service.domain.codefacts.findings.Findings
    target: Mapped[Target] = relationship(lazy="raise")
    revision: Mapped[Revision] = relationship(lazy="raise")
    recipe: Mapped[RecipeRow] = relationship(lazy="raise")


class PolicyRow(Base):
    """One version of a policy, as it was when it made verdicts."""

    __tablename__ = "policies"
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    values: Mapped[dict[str, Any]]
    created_at: Mapped[float]


class Series(Base):
    """A time series: one metric of one case, by one provider of a target, on one device."""

    __tablename__ = "series"
    __table_args__ = (UniqueConstraint("target_id", "device", "provider", "case", "metric"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    device: Mapped[str] = mapped_column(ShortText(40))
    provider: Mapped[str] = mapped_column(ShortText(80))
    case: Mapped[str] = mapped_column(ShortText(120))  # without its metric
    metric: Mapped[Metric] = mapped_column(_enum(Metric))

    @hybrid_property
    def printed(self) -> str:
        """The case as people read and type it, with its metric."""
        return print_case(self.case, self.metric)

    @printed.inplace.expression
    @classmethod
    def _printed(cls) -> ColumnElement[str]:
        return case((cls.metric == Metric.KERNEL, cls.case), else_=cls.case + "." + cls.metric)

    @property
    def key(self) -> SeriesKey:
        return SeriesKey(self.target_id, self.device, self.provider, self.case, self.metric)


class OfSeries:
    """A row about one series, which is loaded with it."""

    series_id: Mapped[int] = mapped_column(ForeignKey("series.id"))

    @declared_attr
    @classmethod
    def series(cls) -> Mapped[Series]:
        return relationship(lazy="joined", innerjoin=True)

    @property
    def target_id(self) -> int:
        return self.series.target_id

    @property
    def device(self) -> str:
        return self.series.device

    @property
    def provider(self) -> str:
        return self.series.provider

    @property
    def case(self) -> str:
        """As people read and type it, with its metric."""
        return self.series.printed

    @property
    def metric(self) -> Metric:
        return self.series.metric

    @property
    def name(self) -> tuple[str, str]:
        """Provider and case, which identify the series within its target and device."""
        return self.provider, self.case


class Incident(Base):
    """Regressions of many cases that one event made: the same revisions on one device."""

    __tablename__ = "incidents"
    __table_args__ = (
        Index("ix_incidents_target", "target_id", "device", "closed_at"),
        Index("ix_incidents_opened", "opened_at"),
        Index("ix_incidents_revision", "revision_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    device: Mapped[str] = mapped_column(ShortText(40))
    revision_id: Mapped[int] = mapped_column(ForeignKey("revisions.id"))  # the earliest that is in it
    opened_at: Mapped[float]
    closed_at: Mapped[float | None]  # when the last of its regressions was fixed or dismissed
    cause_kind: Mapped[str | None] = mapped_column(ShortText(16))
    cause_text: Mapped[str | None]
    revision: Mapped[Revision] = relationship(lazy="raise")


# As written in its index, which a query with parameters would not use.
OPEN_ONES = text("state IN ('open', 'acknowledged', 'bisecting', 'blamed')")


class RegressionRow(OfSeries, Base):
    """A confirmed regression of one case, from the revision that introduced it to the one that fixed it."""

    __tablename__ = "regressions"
    __table_args__ = (
        Index("ix_regressions_series", "series_id", "state"),
        Index("ix_regressions_open", "incident_id", "id", sqlite_where=OPEN_ONES, postgresql_where=OPEN_ONES),
        Index("ix_regressions_fixed", "fixed_at"),
        Index("ix_regressions_opened", "opened_at"),
        Index("ix_regressions_fixed_by", "fixed_by"),
        Index("ix_regressions_run", "run_id"),
        Index("ix_regressions_incident", "incident_id"),
        Index("ix_regressions_state", "state", "id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"))
    found_by: Mapped[FoundBy] = mapped_column(_enum(FoundBy), default=FoundBy.PAIR)
    ratio: Mapped[float]
    low: Mapped[float | None]
    high: Mapped[float | None]
    state: Mapped[RegressionState] = mapped_column(_enum(RegressionState), default=RegressionState.OPEN)
    opened_at: Mapped[float]
    fixed_at: Mapped[float | None]
    fixed_by: Mapped[int | None] = mapped_column(ForeignKey("runs.id"))
    good: Mapped[str | None] = mapped_column(ShortText(64))  # the revision that it is slower than
    culprit: Mapped[str | None] = mapped_column(ShortText(64))  # the revision that is blamed
    cause_kind: Mapped[str | None] = mapped_column(ShortText(16))
    cause_text: Mapped[str | None]
    assignee: Mapped[str | None] = mapped_column(ShortText(80))
    due_at: Mapped[float | None]
    reason: Mapped[str | None]  # why it is acknowledged or dismissed
    until: Mapped[float | None]  # an acknowledgement ends then; None for never
    run: Mapped[Run] = relationship(lazy="raise", foreign_keys=[run_id])


class RegressionEvent(Base):
    """The history of a regression: every change adds a row with actor, action and time."""

    __tablename__ = "regression_events"
    __table_args__ = (
        Index("ix_regression_events", "regression_id", "id"),
        Index("ix_regression_events_at", "at"),
        _references("ix_regression_events_run", "run_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    regression_id: Mapped[int] = mapped_column(ForeignKey("regressions.id"))
    at: Mapped[float]
    who: Mapped[str] = mapped_column(ShortText(80))  # a person, or "kernelwatch"
    what: Mapped[str] = mapped_column(ShortText(32))  # "opened", "acknowledged", "note", …
    state: Mapped[RegressionState] = mapped_column(_enum(RegressionState))  # after it
    words: Mapped[str | None]
    run_id: Mapped[int | None] = mapped_column(ForeignKey("runs.id"))  # the measurement that showed it


class ChangePoint(OfSeries, Base):
    """A step or a leak in the history of one series; a step is kept as it was when it was first seen."""

    __tablename__ = "change_points"
    __table_args__ = (
        UniqueConstraint("series_id", "revision_id"),
        Index("ix_change_points_state", "state"),
        Index("ix_change_points_revision", "revision_id"),
        Index("ix_change_points_before", "before_id"),
        _references("ix_change_points_bisection", "bisection_id"),
        _references("ix_change_points_regression", "regression_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    revision_id: Mapped[int] = mapped_column(ForeignKey("revisions.id"))  # the first after the step
    before_id: Mapped[int] = mapped_column(ForeignKey("revisions.id"))  # the last measured one before it
    ratio: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    p: Mapped[float]
    revisions: Mapped[int | None]  # that were compared; not known of old points
    # Of a leak: the first revisions of its parts, each with the ratio so far.
    course: Mapped[list[Any] | None] = mapped_column(OptionalJSON)
    level: Mapped[str] = mapped_column(ShortText(16))  # "notify" or "block"
    state: Mapped[PointState] = mapped_column(_enum(PointState), default=PointState.OPEN)
    reason_code: Mapped[str | None] = mapped_column(ShortText(32))  # a service.domain.states.PointReason
    reason_args: Mapped[dict[str, Any] | None] = mapped_column(OptionalJSON)
    refuted_scans: Mapped[int] = mapped_column(default=0)  # scans in a row with evidence against it
    found_at: Mapped[float]
    followed_by: Mapped[int | None]  # revisions that were measured after it when a scan last found it
    bisection_id: Mapped[int | None] = mapped_column(ForeignKey("bisections.id"))
    regression_id: Mapped[int | None] = mapped_column(ForeignKey("regressions.id"))


class Bisection(Base):
    """A search between a good and a bad revision of the mainline; its steps are runs."""

    __tablename__ = "bisections"
    __table_args__ = (
        Index("ix_bisections_state", "state"),
        Index("ix_bisections_target", "target_id", "created_at"),
        _references("ix_bisections_incident", "incident_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    device: Mapped[str] = mapped_column(ShortText(40))
    suite: Mapped[str] = mapped_column(ShortText(40))
    cases: Mapped[list[str]]  # those that moved
    good: Mapped[str] = mapped_column(ShortText(64))
    bad: Mapped[str] = mapped_column(ShortText(64))
    line: Mapped[list[str]]  # the revisions from good to bad along first parents, both included
    state: Mapped[SearchState] = mapped_column(_enum(SearchState), default=SearchState.VERIFYING)
    asked_by: Mapped[str] = mapped_column(ShortText(80))  # a person, or "kernelwatch"
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"))
    max_runs: Mapped[int]
    culprit: Mapped[str | None] = mapped_column(ShortText(64))
    reason: Mapped[str | None]  # what was found, in one sentence
    waits_for_budget: Mapped[bool] = mapped_column(default=False)  # today's steps are spent
    created_at: Mapped[float]
    finished_at: Mapped[float | None]
    target: Mapped[Target] = relationship(lazy="raise")


class Calibration(OfSeries, Base):
    """One comparison of equal code: a copy against its original at one case of one session."""

    __tablename__ = "calibrations"
    __table_args__ = (
        UniqueConstraint("run_id", "series_id", "kind", name="uq_calibrations_comparison"),
        Index("ix_calibrations_series", "series_id", "id"),
        Index("ix_calibrations_alarms", "run_id", "alarmed"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    worker: Mapped[str | None] = mapped_column(ShortText(120))
    ratio: Mapped[float]
    p: Mapped[float]  # of "there is no difference", two-sided: below 0.05 in 5 of 100 where the machine is fair
    trials: Mapped[int]
    alarmed: Mapped[bool]  # would it have been reported as a change?
    kind: Mapped[Equal] = mapped_column(_enum(Equal), default=Equal.COPY)
    at: Mapped[float]


class CalibrationPlan(Base):
    """When a worker is to calibrate a target that was measured on its device."""

    __tablename__ = "calibration_plans"
    __table_args__ = (
        Index("ix_calibration_plans_due", "worker", "due_at"),
        Index("ix_calibration_plans_planned", "worker", "planned_at"),
    )
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), primary_key=True)
    worker: Mapped[str] = mapped_column(ShortText(120), primary_key=True)
    due_at: Mapped[float]  # it is planned then, and not necessarily queued
    planned_at: Mapped[float]


class CalibrationTotals(Base):
    """The comparisons of equal code of one session, in numbers."""

    __tablename__ = "calibration_totals"
    __table_args__ = (Index("ix_calibration_totals_at", "at"), Index("ix_calibration_totals_target", "target_id"))
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True, autoincrement=False)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    at: Mapped[float]
    comparisons: Mapped[int]
    alarmed: Mapped[int]  # would have been reported as a change
    squares: Mapped[float]  # sum of the squared logarithms of their ratios


_UNRELEASED = text("released_at IS NULL")


class Quarantine(OfSeries, Base):
    """A case that alarms without cause too often: it is measured and shown, but raises no alarm."""

    __tablename__ = "quarantines"
    __table_args__ = (
        Index("ix_quarantines_series", "series_id"),
        # Two sessions that end at once quarantine a case once.
        Index("ix_quarantines_open", "series_id", unique=True, sqlite_where=_UNRELEASED, postgresql_where=_UNRELEASED),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    since: Mapped[float]
    by: Mapped[str] = mapped_column(ShortText(80))  # a person, or "kernelwatch"
    reason: Mapped[str]
    released_at: Mapped[float | None]
    released_by: Mapped[str | None] = mapped_column(ShortText(80))
    released_why: Mapped[str | None]


class Gap(OfSeries, Base):
    """A mainline case that runs behind SOTA: since which run, how far then and now, and who moved."""

    __tablename__ = "gaps"
    __table_args__ = (
        UniqueConstraint("series_id"),
        _references("ix_gaps_since_run", "since_run_id"),
        Index("ix_gaps_last_run", "last_run_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    behind_sota: Mapped[bool]
    since_run_id: Mapped[int | None] = mapped_column(ForeignKey("runs.id"))  # None while not behind
    last_run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    ratio_then: Mapped[float | None]
    ratio_now: Mapped[float]
    own: Mapped[float]  # in the unit of the case's metric, and so is the next
    sota: Mapped[float]
    stack_id: Mapped[int | None] = mapped_column(ForeignKey("stacks.id"))


class GapEvent(OfSeries, Base):
    """A case fell behind SOTA, or is no longer behind: the history of its gap."""

    __tablename__ = "gap_events"
    __table_args__ = (
        Index("ix_gap_events_at", "at"),
        Index("ix_gap_events_run", "run_id"),
        Index("ix_gap_events_series", "series_id", "at"),  # SQLite takes it for the events of a target in a week, too
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))  # the measurement that showed it
    at: Mapped[float]
    behind_sota: Mapped[bool]  # after it
    ratio: Mapped[float]
    ratio_before: Mapped[float | None]  # when the gap was last recorded
    own: Mapped[float]  # in the unit of the case's metric, and so is the next
    sota: Mapped[float]


class ConfigurationDrift(OfSeries, Base):
    """A session ran another configuration of a kernel than its baseline or an earlier session of the revision."""

    __tablename__ = "configuration_drifts"
    __table_args__ = (
        UniqueConstraint("run_id", "series_id", "moved_by"),
        Index("ix_configuration_drifts_at", "at"),
        Index("ix_configuration_drifts_earlier_run", "earlier_run_id"),
        Index("ix_configuration_drifts_series", "series_id", "at"),  # as that of gap events
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))  # whose session chose differently
    # The session before, of the same revision; of a commit `run_id`, which measured both sides.
    earlier_run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    moved_by: Mapped[MovedBy] = mapped_column(_enum(MovedBy), default=MovedBy.NOTHING)
    at: Mapped[float]
    before: Mapped[str] = mapped_column(Text)
    now: Mapped[str] = mapped_column(Text)


class OutboxMessage(Base):
    """The outbox: something to be said outside, sent by the control worker after the commit that decided it."""

    __tablename__ = "outbox_messages"
    __table_args__ = (
        Index("ix_outbox_messages_state", "state", "next_at"),
        Index("ix_outbox_messages_run", "run_id"),
        Index("ix_outbox_messages_target", "target_id", "claimed_at"),
        Index(
            "ix_outbox_messages_waiting",
            *("target_id", "next_at", "id"),
            sqlite_where=UNSENT,
            postgresql_where=UNSENT,
        ),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    key: Mapped[str] = mapped_column(
        ShortText(200), unique=True
    )  # one comment per pull request, one status per commit and device, one answer per command
    kind: Mapped[str] = mapped_column(ShortText(20))  # "comment", "check", "answer" or "reaction"
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    run_id: Mapped[int | None] = mapped_column(ForeignKey("runs.id"))  # None for answers and reactions to commands
    payload: Mapped[dict[str, Any]]
    state: Mapped[OutboxState] = mapped_column(_enum(OutboxState), default=OutboxState.WAITING)
    version: Mapped[int] = mapped_column(default=1)  # raised whenever the payload is replaced
    remote_id: Mapped[str | None] = mapped_column(ShortText(80))
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[float] = mapped_column(default=0.0)
    claimed_at: Mapped[float] = mapped_column(default=0.0, server_default="0")  # when it was last about to be sent
    error: Mapped[str | None]
    created_at: Mapped[float] = mapped_column(default=0.0)


class Subscription(Base):
    """Who is notified of what: events of a target, or of all, are sent to a channel of the settings."""

    __tablename__ = "subscriptions"
    __table_args__ = (_references("ix_subscriptions_target", "target_id"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    channel: Mapped[str] = mapped_column(ShortText(80))
    target_id: Mapped[int | None] = mapped_column(ForeignKey("targets.id"))  # None for all, and for workers
    device: Mapped[str | None] = mapped_column(ShortText(80))  # a pattern; None for all
    severity: Mapped[GateAction] = mapped_column(_enum(GateAction, 16))  # the smallest
    kinds: Mapped[list[str] | None]  # of events; None for all
    created_at: Mapped[float]
    created_by: Mapped[str] = mapped_column(ShortText(120))
    owner_kind: Mapped[ActorKind] = mapped_column(_enum(ActorKind, 16))  # nothing is sent that the owner may not read
    owner_id: Mapped[int | None] = mapped_column(BigInteger)  # of the key or account
    target: Mapped[Target | None] = relationship(lazy="raise")


class NoticeMessage(Base):
    """A message to a channel, with all events that were due when it was made."""

    __tablename__ = "notice_messages"
    __table_args__ = (
        Index("ix_notice_messages_state", "state", "next_at"),
        Index("ix_notice_messages_subscription", "subscription_id", "created_at"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    subscription_id: Mapped[int] = mapped_column(ForeignKey("subscriptions.id"))
    channel: Mapped[str] = mapped_column(ShortText(80))
    document: Mapped[dict[str, Any]]  # a service.reports.feeds.notices.NoticeDocument
    state: Mapped[OutboxState] = mapped_column(_enum(OutboxState), default=OutboxState.WAITING)
    attempts: Mapped[int] = mapped_column(default=0)  # that the receiver refused
    next_at: Mapped[float] = mapped_column(default=0.0)
    error: Mapped[str | None]
    created_at: Mapped[float]
    sent_at: Mapped[float | None]


class Notice(Base):
    """One event for one subscription."""

    __tablename__ = "notices"
    __table_args__ = (
        UniqueConstraint("subscription_id", "key"),
        Index("ix_notices_state", "state", "subscription_id"),
        _references("ix_notices_target", "target_id"),
        _references("ix_notices_message", "message_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    subscription_id: Mapped[int] = mapped_column(ForeignKey("subscriptions.id"))
    key: Mapped[str] = mapped_column(ShortText(240))  # the same event is noted once
    target_id: Mapped[int | None] = mapped_column(ForeignKey("targets.id"))
    kind: Mapped[EventKind] = mapped_column(_enum(EventKind))
    subject: Mapped[str] = mapped_column(ShortText(200))  # what it opens or closes: "regression 4"
    series: Mapped[str] = mapped_column(ShortText(200))  # what must not change back and forth: "series 7"
    event: Mapped[dict[str, Any]]  # a service.domain.notices.NotableEvent
    at: Mapped[float]
    state: Mapped[NoticeState] = mapped_column(_enum(NoticeState), default=NoticeState.WAITING)
    message_id: Mapped[int | None] = mapped_column(ForeignKey("notice_messages.id"))


class ChannelHealth(Base):
    """A channel that failed: since when, and until when nothing is sent to it."""

    __tablename__ = "channel_health"
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    channel: Mapped[str] = mapped_column(ShortText(80), unique=True)
    failures: Mapped[int] = mapped_column(default=0)  # in a row
    failing_since: Mapped[float | None]
    paused_until: Mapped[float] = mapped_column(default=0.0)
    error: Mapped[str | None]
    sent_at: Mapped[float | None]  # the last message that arrived


class Worker(Base):
    """A process that measures on one device, or on several GPUs of one model: what it does, and when it was seen."""

    __tablename__ = "workers"
    __table_args__ = (_references("ix_workers_run", "run_id"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    name: Mapped[str] = mapped_column(ShortText(120), unique=True)
    device: Mapped[str] = mapped_column(ShortText(40))
    description: Mapped[str]  # "NVIDIA H200, GPU-…", or the processor's name
    sandbox: Mapped[str | None]  # why the sandbox cannot work here; None when it works
    started_at: Mapped[float]
    seen_at: Mapped[float]
    run_id: Mapped[int | None] = mapped_column(ForeignKey("runs.id"))
    paused_at: Mapped[float | None]  # takes no run since then
    paused_by: Mapped[str | None] = mapped_column(ShortText(120))
    lost_at: Mapped[float | None]  # when people were notified that it does not answer


class Account(Base):
    """A person who signed in through GitHub or another provider."""

    __tablename__ = "accounts"
    __table_args__ = (UniqueConstraint("issuer", "subject"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    issuer: Mapped[str] = mapped_column(ShortText(200))  # URL of the provider
    subject: Mapped[str] = mapped_column(ShortText(200))  # who it is there; unlike the login it never changes
    login: Mapped[str] = mapped_column(ShortText(120))
    admin: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[float]
    signed_in_at: Mapped[float]
    disabled_at: Mapped[float | None]


class Role(Base):
    """What a person may do with one target, as the forge's permissions were when they were last asked for."""

    __tablename__ = "roles"
    __table_args__ = (UniqueConstraint("account_id", "target_id"), Index("ix_roles_target", "target_id"))
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    permission: Mapped[str] = mapped_column(ShortText(16))  # of the forge: none, read, triage, write, maintain or admin
    checked_at: Mapped[float]


class SignIn(Base):
    """A session of a person in a browser; its cookie holds a secret of which only the hash is here."""

    __tablename__ = "sign_ins"
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    created_at: Mapped[float]
    expires_at: Mapped[float]
    ended_at: Mapped[float | None]


class ApiKey(Base):
    """A key of a program or a person: the hash of its secret, and until when it is valid."""

    __tablename__ = "api_keys"
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    name: Mapped[str] = mapped_column(ShortText(80))
    prefix: Mapped[str] = mapped_column(ShortText(16), unique=True)  # shown, so that people know which key it is
    digest: Mapped[str] = mapped_column(ShortText(64))  # SHA-256 of the whole key, which has 256 random bits
    account_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))  # whose it is; None for a program
    rotated_from: Mapped[int | None] = mapped_column(ForeignKey("api_keys.id"))  # the key that it replaces
    created_at: Mapped[float]
    created_by: Mapped[str] = mapped_column(ShortText(120))
    expires_at: Mapped[float | None]
    used_at: Mapped[float | None]  # to the minute
    revoked_at: Mapped[float | None]
    revoked_by: Mapped[str | None] = mapped_column(ShortText(120))
    grants: Mapped[list["KeyGrant"]] = relationship(lazy="raise", order_by="KeyGrant.id")


class KeyGrant(Base):
    """A scope of a key."""

    __tablename__ = "key_grants"
    __table_args__ = (
        UniqueConstraint("key_id", "scope", "target_id"),
        _references("ix_key_grants_target", "target_id"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    key_id: Mapped[int] = mapped_column(ForeignKey("api_keys.id"))
    scope: Mapped[Scope] = mapped_column(_enum(Scope, 16))
    target_id: Mapped[int | None] = mapped_column(ForeignKey("targets.id"))  # None for all


class AuditEntry(Base):
    """Something that somebody changed.  Rows are only ever added; names are kept as they were."""

    __tablename__ = "audit_entries"
    __table_args__ = (Index("ix_audit_entries_target", "target", "id"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    at: Mapped[float]
    actor_kind: Mapped[ActorKind] = mapped_column(_enum(ActorKind, 16))
    actor: Mapped[str] = mapped_column(ShortText(120))
    actor_id: Mapped[int | None] = mapped_column(BigInteger)  # of the key or account
    action: Mapped[str] = mapped_column(ShortText(40))  # "target.add", "run.cancel", …
    target: Mapped[str | None] = mapped_column(ShortText(80))  # a name: the entry outlives its target
    object: Mapped[str | None] = mapped_column(ShortText(120))  # "run 12", "regression 4", …
    details: Mapped[dict[str, Any]]
    address: Mapped[str | None] = mapped_column(ShortText(60))  # where the request came from


class RepeatableRequest(Base):
    """A request with an idempotency key, and its response; a repeat gets the same."""

    __tablename__ = "repeatable_requests"
    __table_args__ = (
        UniqueConstraint("owner", "key"),
        Index("ix_repeatable_requests_begun", "begun_at"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    owner: Mapped[str] = mapped_column(ShortText(40))  # "key 3", "person 5"
    key: Mapped[str] = mapped_column(ShortText(200))
    digest: Mapped[str] = mapped_column(ShortText(64))  # SHA-256 of method, path and body
    begun_at: Mapped[float]
    status: Mapped[int | None]  # None while it is handled
    body: Mapped[str | None]


class IngestBatch(Base):
    """Measurements that somebody made elsewhere and sent in one request, with their provenance."""

    __tablename__ = "ingest_batches"
    __table_args__ = (Index("ix_ingest_batches_target", "target_id", "id"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    device: Mapped[str] = mapped_column(ShortText(40))
    tool: Mapped[str] = mapped_column(ShortText(120))
    machine: Mapped[str] = mapped_column(ShortText(120))
    measured_at: Mapped[float | None]
    stack: Mapped[dict[str, Any]]
    notes: Mapped[dict[str, Any]]
    sent_by: Mapped[str] = mapped_column(ShortText(120))
    received_at: Mapped[float]
    measurements: Mapped[int] = mapped_column(default=0)
    samples: Mapped[int] = mapped_column(default=0)
    complete: Mapped[bool] = mapped_column(default=False)  # readers see it only then


class IngestedMeasurement(Base):
    """A measurement made elsewhere.  It is in no history, verdict or gate of what was measured here."""

    __tablename__ = "ingested_measurements"
    __table_args__ = (
        Index("ix_ingested_measurements_series", "target_id", "device", "provider", "case", "id"),
        Index("ix_ingested_measurements_revision", "target_id", "revision"),
    )
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    batch_id: Mapped[int] = mapped_column(ForeignKey("ingest_batches.id"), index=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))  # the rest of the series' key, for its index
    device: Mapped[str] = mapped_column(ShortText(40))
    provider: Mapped[str] = mapped_column(ShortText(80))
    case: Mapped[str] = mapped_column(ShortText(120))  # with its metric
    revision: Mapped[str] = mapped_column(ShortText(64))  # as it was sent; kernelwatch need not know it
    median: Mapped[float | None]  # None where there are no samples
    samples: Mapped[str] = mapped_column(Text)  # JSON
    unit: Mapped[str | None] = mapped_column(ShortText(20))  # None: that of the case's metric
    better: Mapped[Better | None] = mapped_column(_enum(Better))  # None: smaller samples
    missing: Mapped[Missing | None] = mapped_column(_enum(Missing))  # why there are no samples


class StudySession(Base):
    """A study as it was measured once, on one device.  It belongs to no target."""

    __tablename__ = "study_sessions"
    __table_args__ = (UniqueConstraint("study", "began", "device"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    study: Mapped[str] = mapped_column(ShortText(40))  # a name in kernels.studies.catalogue
    began: Mapped[str] = mapped_column(ShortText(40))  # ISO 8601, as the run wrote it: part of the identity
    device: Mapped[str] = mapped_column(ShortText(40))
    quick: Mapped[bool]
    machine: Mapped[dict[str, Any]]
    code: Mapped[dict[str, Any]]
    notes: Mapped[list[Any]] = _large()  # [what, value]: versions of each arm, ceilings, telemetry
    added_at: Mapped[float]
    updated_at: Mapped[float]  # the last record or note


class StudyRecord(Base):
    """One arm of a study at one case in one trial."""

    __tablename__ = "study_records"
    __table_args__ = (UniqueConstraint("session_id", "step", "trial", "case", "arm"),)
    id: Mapped[int] = mapped_column(Key, primary_key=True)
    session_id: Mapped[int] = mapped_column(ForeignKey("study_sessions.id"))
    step: Mapped[str] = mapped_column(ShortText(80))
    trial: Mapped[int]
    case: Mapped[str] = mapped_column(ShortText(200))
    arm: Mapped[str] = mapped_column(ShortText(80))
    state: Mapped[str] = mapped_column(ShortText(32))
    reason: Mapped[str | None]
    unit: Mapped[str] = mapped_column(ShortText(16))
    samples: Mapped[bytes] = mapped_column(LargeBinary)  # see pack(): one trial, a value or null for each round
    facts: Mapped[dict[str, Any]] = _large()


def unpack(packed: bytes) -> tuple[list[Rounds], list[Rounds], list[Rounds]]:
    """The inverse of `pack`: the screening trials, the confirmation trials, and the rounds apart of each trial."""
    screened, confirmed, *apart = json.loads(zlib.decompress(packed))
    return screened, confirmed, apart[0] if apart else []


def pack(screened: Sequence[Rounds], confirmed: Sequence[Rounds], apart: Sequence[Rounds] = ()) -> bytes:
    """Raw samples compactly: JSON in zlib, [screened, confirmed], each with one list of rounds a trial.

    Trials that only confirm a suspicion are kept apart, and so are the rounds with contenders whose numbers are not
    exact enough, where there are any.
    """
    parts = (screened, confirmed, apart) if any(apart) else (screened, confirmed)
    rounded = [[[None if taken is None else round(taken, 4) for taken in trial] for trial in part] for part in parts]
    return zlib.compress(json.dumps(rounded, separators=(",", ":")).encode(), 9)
