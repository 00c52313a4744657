"""Regressions, incidents, bisections, calibration and policies."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from .calls import Call, Listing, Value, get, get_list, post
from .models import (
    BisectionDocument,
    BisectionItem,
    CalibrationDocument,
    IncidentItem,
    Page,
    PolicyDocument,
    PolicyItem,
    QuarantineItem,
    RegressionDocument,
    RegressionItem,
    RegressionState,
    ReplayDocument,
    RunItem,
)
from .resources import Mode, Resource, endpoint, listing


class Regressions(Resource[Mode]):
    """Confirmed slow-downs of mainlines."""

    @listing
    def list(
        self, *, state: Sequence[RegressionState] | None = None, expand: Sequence[str] | None = None
    ) -> Listing[RegressionItem]:
        """Those of all targets, the newest first, in one of these states; `expand=["events"]` adds histories."""
        return get_list("/regressions", RegressionItem, {"state": state, "expand": expand})

    @endpoint
    def get(self, regression_id: int) -> Call[RegressionDocument]:
        """One regression with its history, its incident and its bisections."""
        return get("/regressions/{regression_id}", RegressionDocument, regression_id=regression_id)

    @endpoint
    def acknowledge(
        self, regression_id: int, reason: str, *, until: datetime | None = None
    ) -> Call[RegressionDocument]:
        """Accept it, for good or `until` a time: its revision may be a baseline again."""
        return _regression(regression_id, "acknowledge", {"reason": reason, "until": until})

    @endpoint
    def dismiss(self, regression_id: int, reason: str) -> Call[RegressionDocument]:
        """Close it as false or intended."""
        return _regression(regression_id, "dismiss", {"reason": reason})

    @endpoint
    def reopen(self, regression_id: int, *, reason: str | None = None) -> Call[RegressionDocument]:
        """Open it again; later measurements may close it as fixed."""
        return _regression(regression_id, "reopen", {"reason": reason})

    @endpoint
    def assign(self, regression_id: int, assignee: str | None) -> Call[RegressionDocument]:
        """Assign it to a person; None is nobody."""
        return post(
            "/regressions/{regression_id}/assign",
            RegressionDocument,
            {"assignee": assignee},
            nulls=True,
            regression_id=regression_id,
        )

    @endpoint
    def note(self, regression_id: int, text: str) -> Call[RegressionDocument]:
        """Add a note to its history."""
        return _regression(regression_id, "note", {"text": text})

    @endpoint
    def due(self, regression_id: int, due_at: datetime | None) -> Call[RegressionDocument]:
        """Set the day by which it must be fixed; None is no day."""
        return post(
            "/regressions/{regression_id}/due",
            RegressionDocument,
            {"due_at": due_at},
            nulls=True,
            regression_id=regression_id,
        )


class Incidents(Resource[Mode]):
    """Regressions of several cases with one cause.  Changes apply to each of them."""

    @listing
    def list(self, *, closed: bool | None = None) -> Listing[IncidentItem]:
        """Those of all targets, the newest first; `closed` includes closed ones."""
        return get_list("/incidents", IncidentItem, {"closed": closed})

    @endpoint
    def get(self, incident_id: int) -> Call[IncidentItem]:
        """One incident with its regressions."""
        return get("/incidents/{incident_id}", IncidentItem, incident_id=incident_id)

    @endpoint
    def acknowledge(self, incident_id: int, reason: str, *, until: datetime | None = None) -> Call[IncidentItem]:
        """Accept it, for good or `until` a time: its revision may be a baseline again."""
        return _incident(incident_id, "acknowledge", {"reason": reason, "until": until})

    @endpoint
    def dismiss(self, incident_id: int, reason: str) -> Call[IncidentItem]:
        """Close it as false or intended."""
        return _incident(incident_id, "dismiss", {"reason": reason})

    @endpoint
    def reopen(self, incident_id: int, *, reason: str | None = None) -> Call[IncidentItem]:
        """Open it again; later measurements may close it as fixed."""
        return _incident(incident_id, "reopen", {"reason": reason})

    @endpoint
    def assign(self, incident_id: int, assignee: str | None) -> Call[IncidentItem]:
        """Assign it to a person; None is nobody."""
        return _incident(incident_id, "assign", {"assignee": assignee}, nulls=True)

    @endpoint
    def note(self, incident_id: int, text: str) -> Call[IncidentItem]:
        """Add a note to its history."""
        return _incident(incident_id, "note", {"text": text})

    @endpoint
    def due(self, incident_id: int, due_at: datetime | None) -> Call[IncidentItem]:
        """Set the day by which it must be fixed; None is no day."""
        return _incident(incident_id, "due", {"due_at": due_at}, nulls=True)


def _regression(
    regression_id: int, change: str, fields: Mapping[str, Value], *, nulls: bool = False
) -> Call[RegressionDocument]:
    template = f"/regressions/{{regression_id}}/{change}"
    return post(template, RegressionDocument, fields, nulls=nulls, regression_id=regression_id)


def _incident(incident_id: int, change: str, fields: Mapping[str, Value], *, nulls: bool = False) -> Call[IncidentItem]:
    return post(f"/incidents/{{incident_id}}/{change}", IncidentItem, fields, nulls=nulls, incident_id=incident_id)


class Bisections(Resource[Mode]):
    """Searches for the revision that made a case slower."""

    @listing
    def list(self, *, target: str | None = None, running: bool | None = None) -> Listing[BisectionItem]:
        """Bisections, the newest first; `running` leaves out those that ended."""
        return get_list("/bisections", BisectionItem, {"target": target, "running": running})

    @endpoint
    def get(self, bisection_id: int) -> Call[BisectionDocument]:
        """One bisection with its steps; each step is a run."""
        return get("/bisections/{bisection_id}", BisectionDocument, bisection_id=bisection_id)

    @endpoint
    def start(
        self,
        target: str,
        good: str,
        bad: str,
        *,
        device: str | None = None,
        cases: Sequence[str] | None = None,
        suite: str | None = None,
        max_runs: int | None = None,
    ) -> Call[BisectionDocument]:
        """Search between a fast and a slow revision; an open bisection of the same is returned.

        `cases` are patterns, by default those known to be slower.
        """
        fields: dict[str, Value] = {"target": target, "good": good, "bad": bad, "device": device}
        fields |= {"cases": cases, "suite": suite, "max_runs": max_runs}
        return post("/bisections", BisectionDocument, fields)

    @endpoint
    def stop(self, bisection_id: int) -> Call[BisectionDocument]:
        """Stop it: its queued step is cancelled, and its steps are kept."""
        return post("/bisections/{bisection_id}/stop", BisectionDocument, bisection_id=bisection_id)


class Calibration(Resource[Mode]):
    """How often equal code differs, and the cases that are quarantined for it."""

    @endpoint
    def get(
        self,
        *,
        target: str | None = None,
        device: str | None = None,
        worker: str | None = None,
        days: int | None = None,
        limit: int | None = None,
    ) -> Call[CalibrationDocument]:
        """Measured false-alarm rates of equal code in the last `days`; at most `limit` cases."""
        params = {"target": target, "device": device, "worker": worker, "days": days, "limit": limit}
        return get("/calibration", CalibrationDocument, params)

    @listing
    def quarantines(self, *, target: str | None = None, released: bool | None = None) -> Listing[QuarantineItem]:
        """Quarantined cases, the newest first; `released` includes released ones."""
        return get_list("/quarantines", QuarantineItem, {"target": target, "released": released})

    @endpoint
    def start(
        self,
        target: str,
        *,
        device: str,
        revision: str | None = None,
        suite: str | None = None,
        worker: str | None = None,
    ) -> Call[RunItem]:
        """Queue a calibration of a mainline revision; by default the newest that fits, on any worker of the device."""
        fields = {"device": device, "revision": revision, "suite": suite, "worker": worker}
        return post("/targets/{name}/calibrate", RunItem, fields, name=target)

    @endpoint
    def quarantine(
        self, target: str, case: str, *, device: str, reason: str, provider: str | None = None
    ) -> Call[Page[QuarantineItem]]:
        """Stop reporting a case until it is released; the result is what is quarantined on its device."""
        fields = {"case": case, "device": device, "provider": provider, "reason": reason}
        return post("/targets/{name}/quarantine", Page[QuarantineItem], fields, name=target)

    @endpoint
    def release(
        self, target: str, case: str, *, device: str, reason: str, provider: str | None = None
    ) -> Call[Page[QuarantineItem]]:
        """Report a quarantined case again; the result is what is still quarantined on its device."""
        fields = {"case": case, "device": device, "provider": provider, "reason": reason}
        return post("/targets/{name}/release", Page[QuarantineItem], fields, name=target)


class Policies(Resource[Mode]):
    """Versions of policies."""

    @listing
    def list(self) -> Listing[PolicyItem]:
        """Those that made verdicts, the newest first."""
        return get_list("/policies", PolicyItem)

    @endpoint
    def get(self, digest: str) -> Call[PolicyDocument]:
        """One version with its values."""
        return get("/policies/{digest}", PolicyDocument, digest=digest)

    @endpoint
    def replay(
        self, target: str, policy: str, *, device: str | None = None, since: datetime | None = None
    ) -> Call[ReplayDocument]:
        """Say which alarms would be new, missed or unchanged if a policy (TOML) had judged the stored runs."""
        fields = {"policy": policy, "device": device, "since": since}
        return post("/targets/{name}/replay", ReplayDocument, fields, name=target)
