"""Targets, their revisions and the histories of their cases."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from .calls import Call, Listing, Value, delete, get, get_list, patch, post
from .models import (
    AddedTargetDocument,
    BackfillDocument,
    CaseItem,
    ChangePointItem,
    CompareDocument,
    DriftItem,
    FactsCheckItem,
    FactsDiffDocument,
    FactsState,
    GapItem,
    HoldingsDocument,
    IncidentItem,
    MovedBy,
    PointState,
    Purpose,
    RecipeDocument,
    RegressionItem,
    RegressionState,
    RevisionDocument,
    RevisionItem,
    RunItem,
    RunState,
    SeriesDocument,
    SeriesItem,
    TargetDocument,
    TargetItem,
)
from .resources import Mode, Resource, endpoint, listing


class Targets(Resource[Mode]):
    """Watched repositories and packages."""

    @listing
    def list(self, *, expand: Sequence[str] | None = None) -> Listing[TargetItem]:
        """Targets by name; `expand=["counts"]` adds what is open."""
        return get_list("/targets", TargetItem, {"expand": expand})

    @endpoint
    def get(self, target: str) -> Call[TargetDocument]:
        """One target with its recipe."""
        return get("/targets/{name}", TargetDocument, name=target)

    @endpoint
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
    ) -> Call[AddedTargetDocument]:
        """Watch a repository or a package, and measure its newest `backfill` revisions.

        `recipe` is its text, by default kernelwatch.toml of the mainline; `adapters` are file names to sources.
        """
        fields: dict[str, Value] = {"name": target, "location": location, "package": package, "branch": branch}
        fields |= {"forge": forge, "trusted": trusted, "private": private}
        fields |= {"recipe": recipe, "adapters": adapters, "backfill": backfill}
        return post("/targets", AddedTargetDocument, fields)

    @endpoint
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
    ) -> Call[TargetDocument]:
        """Change what is given; `name` renames it, and an empty `branch` or `forge` unsets it."""
        fields: dict[str, Value] = {"name": name, "location": location, "branch": branch, "forge": forge}
        fields |= {"trusted": trusted, "private": private, "allow_unsandboxed": allow_unsandboxed}
        fields |= {"recipe": recipe, "adapters": adapters, "recipe_from_branch": recipe_from_branch}
        return patch("/targets/{name}", TargetDocument, fields, name=target)

    @endpoint
    def pause(self, target: str) -> Call[TargetDocument]:
        """Take no new revisions until it is resumed."""
        return post("/targets/{name}/pause", TargetDocument, name=target)

    @endpoint
    def resume(self, target: str) -> Call[TargetDocument]:
        """Take new revisions again, with those of the meantime."""
        return post("/targets/{name}/resume", TargetDocument, name=target)

    @endpoint
    def remove(self, target: str, *, dry_run: bool | None = None) -> Call[HoldingsDocument]:
        """Delete it with all its measurements, and return their numbers; `dry_run` only counts."""
        return delete("/targets/{name}", HoldingsDocument, {"dry_run": dry_run}, name=target)

    @endpoint
    def backfill(self, target: str, base: str, head: str, *, sample: int | None = None) -> Call[BackfillDocument]:
        """Queue the mainline revisions after `base` up to `head` at low priority, or a `sample` of so many of them."""
        fields = {"base": base, "head": head} | ({"sample": sample} if sample is not None else {})
        return post("/targets/{name}/backfill", BackfillDocument, fields, name=target)

    @endpoint
    def check_recipe(self, recipe: str, *, adapters: Mapping[str, str] | None = None) -> Call[RecipeDocument]:
        """Say what a recipe would measure; nothing is changed.  A mistake in it is `Invalid`."""
        return post("/recipes/check", RecipeDocument, {"recipe": recipe, "adapters": adapters})

    @listing
    def revisions(self, target: str, *, expand: Sequence[str] | None = None) -> Listing[RevisionItem]:
        """Its revisions, the newest first; `expand=["runs"]` adds their runs."""
        return get_list("/targets/{name}/revisions", RevisionItem, {"expand": expand}, name=target)

    @endpoint
    def revision(self, target: str, revision: str) -> Call[RevisionDocument]:
        """One revision with its runs and the checks of its code: a sha or its beginning, or a version."""
        return get("/targets/{name}/revisions/{revision}", RevisionDocument, name=target, revision=revision)

    @listing
    def runs(
        self,
        target: str,
        *,
        device: str | None = None,
        state: Sequence[RunState] | None = None,
        purpose: Purpose | None = None,
        pull: int | None = None,
        revision: str | None = None,
        since: datetime | None = None,
        expand: Sequence[str] | None = None,
    ) -> Listing[RunItem]:
        """Its runs, the newest first.  `revision` is a sha or its beginning, or a version."""
        params = {"device": device, "state": state, "purpose": purpose, "pull": pull, "revision": revision}
        return get_list("/targets/{name}/runs", RunItem, {**params, "since": since, "expand": expand}, name=target)

    @listing
    def regressions(
        self, target: str, *, state: Sequence[RegressionState] | None = None, expand: Sequence[str] | None = None
    ) -> Listing[RegressionItem]:
        """Its confirmed regressions, the newest first, in one of these states; `expand=["events"]` adds histories."""
        params = {"state": state, "expand": expand}
        return get_list("/targets/{name}/regressions", RegressionItem, params, name=target)

    @listing
    def incidents(self, target: str, *, closed: bool | None = None) -> Listing[IncidentItem]:
        """Its incidents, the newest first; `closed` includes closed ones."""
        return get_list("/targets/{name}/incidents", IncidentItem, {"closed": closed}, name=target)

    @listing
    def gaps(self, target: str) -> Listing[GapItem]:
        """Its mainline cases that are slower than SOTA, the largest gap first."""
        return get_list("/targets/{name}/gaps", GapItem, name=target)

    @listing
    def drifts(self, target: str, *, device: str | None = None, by: MovedBy | None = None) -> Listing[DriftItem]:
        """Its configurations that changed, the newest first; `by`: what changed them."""
        return get_list("/targets/{name}/drifts", DriftItem, {"device": device, "by": by}, name=target)

    @listing
    def change_points(
        self, target: str, *, device: str | None = None, state: PointState | None = None
    ) -> Listing[ChangePointItem]:
        """Steps in the histories of its cases, those of the newest revisions first."""
        params = {"device": device, "state": state}
        return get_list("/targets/{name}/change-points", ChangePointItem, params, name=target)

    @endpoint
    def series(
        self,
        target: str,
        case: str,
        *,
        provider: str,
        device: str,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> Call[SeriesDocument]:
        """The history of one case on the mainline, or its newest part; no points if it was never measured."""
        params = {"case": case, "provider": provider, "device": device, "since": since, "limit": limit}
        return get("/targets/{name}/series", SeriesDocument, params, name=target)

    @listing
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
    ) -> Listing[SeriesItem]:
        """The series that its latest mainline runs continued; `case` may have * and ? for several."""
        params = {"device": device, "provider": provider, "op": op, "metric": metric, "case": case, "since": since}
        return get_list("/targets/{name}/series/keys", SeriesItem, params, name=target)

    @listing
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
    ) -> Listing[CaseItem]:
        """The cases that its latest mainline runs measured: by whom, where, and the metrics."""
        params = {"device": device, "provider": provider, "op": op, "metric": metric, "case": case, "since": since}
        return get_list("/targets/{name}/cases", CaseItem, params, name=target)

    @endpoint
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
    ) -> Call[CompareDocument]:
        """Two revisions, releases or pull requests (`pull/7`) on one device."""
        params = {"base": base, "head": head, "device": device, "provider": provider, "op": op}
        more = {"metric": metric, "case": case}
        return get("/targets/{name}/compare", CompareDocument, {**params, **more}, name=target)

    @listing
    def facts(
        self, target: str, *, revision: str | None = None, state: FactsState | None = None
    ) -> Listing[FactsCheckItem]:
        """Revisions that were compiled without a GPU and compared with their baselines, the newest first."""
        return get_list("/targets/{name}/facts", FactsCheckItem, {"revision": revision, "state": state}, name=target)

    @endpoint
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
    ) -> Call[FactsDiffDocument]:
        """What is known of the code of two revisions, without their times."""
        params = {"base": base, "head": head, "device": device, "provider": provider, "op": op, "metric": metric}
        more = {"case": case, "changed": changed, "tables": tables}
        return get("/targets/{name}/facts/diff", FactsDiffDocument, {**params, **more}, name=target)
