"""Targets, their revisions and the histories of their cases."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from . import models
from .calls import Listing
from .resources import Mode, Resource, endpoint, listing


class Targets(Resource[Mode]):
    """Watched repositories and packages."""

    @listing("/targets")
    def list(self, *, expand: Sequence[str] | None = None) -> Listing[models.TargetItem]:
        """Targets by name; `expand=["counts"]` adds what is open."""

    @endpoint("GET /targets/{name}")
    def get(self, target: str) -> models.TargetDocument:
        """One target with its recipe."""

    @endpoint("POST /targets", names={"target": "name"})
    def add(
        self,
        target: str,
        location: str,
        *,
        package: str | None = None,
        branch: str | None = None,
        forge: str | None = None,
        trusted: bool | None = None,
        private: bool | None = None,
        recipe: str | None = None,
        adapters: Mapping[str, str] | None = None,
        backfill: int | None = None,
    ) -> models.AddedTargetDocument:
        """Watch a repository or a package, and measure its newest `backfill` revisions.

        `recipe` is its text, by default kernelwatch.toml of the mainline; `adapters` are file names to sources.
        """

    @endpoint("PATCH /targets/{name}")
    def edit(
        self,
        target: str,
        *,
        name: str | None = None,
        location: str | None = None,
        branch: str | None = None,
        forge: str | None = None,
        trusted: bool | None = None,
        private: bool | None = None,
        allow_unsandboxed: bool | None = None,
        recipe: str | None = None,
        adapters: Mapping[str, str] | None = None,
        recipe_from_branch: bool | None = None,
    ) -> models.TargetDocument:
        """Change what is given; `name` renames it, and an empty `branch` or `forge` unsets it."""

    @endpoint("POST /targets/{name}/pause")
    def pause(self, target: str) -> models.TargetDocument:
        """Take no new revisions until it is resumed."""

    @endpoint("POST /targets/{name}/resume")
    def resume(self, target: str) -> models.TargetDocument:
        """Take new revisions again, with those of the meantime."""

    @endpoint("DELETE /targets/{name}")
    def remove(self, target: str, *, dry_run: bool | None = None) -> models.HoldingsDocument:
        """Delete it with all its measurements, and return their numbers; `dry_run` only counts."""

    @endpoint("POST /targets/{name}/backfill")
    def backfill(self, target: str, base: str, head: str, *, sample: int | None = None) -> models.BackfillDocument:
        """Queue the mainline revisions after `base` up to `head` at low priority, or a `sample` of so many of them."""

    @endpoint("POST /recipes/check")
    def check_recipe(self, recipe: str, *, adapters: Mapping[str, str] | None = None) -> models.RecipeDocument:
        """Say what a recipe would measure; nothing is changed.  A mistake in it is `Invalid`."""

    @listing("/targets/{name}/revisions")
    def revisions(self, target: str, *, expand: Sequence[str] | None = None) -> Listing[models.RevisionItem]:
        """Its revisions, the newest first; `expand=["runs"]` adds their runs."""

    @endpoint("GET /targets/{name}/revisions/{revision}")
    def revision(self, target: str, revision: str) -> models.RevisionDocument:
        """One revision with its runs and the checks of its code: a sha or its beginning, or a version."""

    @listing("/targets/{name}/runs")
    def runs(
        self,
        target: str,
        *,
        device: str | None = None,
        state: Sequence[models.RunState] | None = None,
        purpose: models.Purpose | None = None,
        pull: int | None = None,
        revision: str | None = None,
        since: datetime | None = None,
        expand: Sequence[str] | None = None,
    ) -> Listing[models.RunItem]:
        """Its runs, the newest first.  `revision` is a sha or its beginning, or a version."""

    @listing("/targets/{name}/regressions")
    def regressions(
        self, target: str, *, state: Sequence[models.RegressionState] | None = None, expand: Sequence[str] | None = None
    ) -> Listing[models.RegressionItem]:
        """Its confirmed regressions, the newest first, in one of these states; `expand=["events"]` adds histories."""

    @listing("/targets/{name}/incidents")
    def incidents(self, target: str, *, closed: bool | None = None) -> Listing[models.IncidentItem]:
        """Its incidents, the newest first; `closed` includes closed ones."""

    @listing("/targets/{name}/gaps")
    def gaps(self, target: str) -> Listing[models.GapItem]:
        """Its mainline cases that are slower than SOTA, the largest gap first."""

    @listing("/targets/{name}/drifts")
    def drifts(
        self, target: str, *, device: str | None = None, by: models.MovedBy | None = None
    ) -> Listing[models.DriftItem]:
        """Its configurations that changed, the newest first; `by`: what changed them."""

    @listing("/targets/{name}/change-points")
    def change_points(
        self, target: str, *, device: str | None = None, state: models.PointState | None = None
    ) -> Listing[models.ChangePointItem]:
        """Steps in the histories of its cases, those of the newest revisions first."""

    @endpoint("GET /targets/{name}/series")
    def series(
        self,
        target: str,
        case: str,
        *,
        provider: str,
        device: str,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> models.SeriesDocument:
        """The history of one case on the mainline, or its newest part; no points if it was never measured."""

    @listing("/targets/{name}/series/keys")
    def series_keys(
        self,
        target: str,
        *,
        device: str | None = None,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
        since: datetime | None = None,
    ) -> Listing[models.SeriesItem]:
        """The series that its latest mainline runs continued; `case` may have * and ? for several."""

    @listing("/targets/{name}/cases")
    def cases(
        self,
        target: str,
        *,
        device: str | None = None,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
        since: datetime | None = None,
    ) -> Listing[models.CaseItem]:
        """The cases that its latest mainline runs measured: by whom, where, and the metrics."""

    @endpoint("GET /targets/{name}/compare")
    def compare(
        self,
        target: str,
        base: str,
        head: str,
        *,
        device: str,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
    ) -> models.CompareDocument:
        """Two revisions, releases or pull requests (`pull/7`) on one device."""

    @listing("/targets/{name}/facts")
    def facts(
        self, target: str, *, revision: str | None = None, state: models.FactsState | None = None
    ) -> Listing[models.FactsCheckItem]:
        """Revisions that were compiled without a GPU and compared with their baselines, the newest first."""

    @endpoint("GET /targets/{name}/facts/diff")
    def facts_diff(
        self,
        target: str,
        base: str,
        head: str,
        *,
        device: str | None = None,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
        changed: bool | None = None,
        tables: bool | None = None,
    ) -> models.FactsDiffDocument:
        """What is known of the code of two revisions, without their times."""
