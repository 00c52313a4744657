"""Regressions, incidents, bisections, calibration and policies."""

from collections.abc import Sequence
from datetime import datetime

from .calls import Listing
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

    @listing("/regressions")
    def list(
        self, *, state: Sequence[RegressionState] | None = None, expand: Sequence[str] | None = None
    ) -> Listing[RegressionItem]:
        """Those of all targets, the newest first, in one of these states; `expand=["events"]` adds histories."""

    @endpoint("GET /regressions/{regression_id}")
    def get(self, regression_id: int) -> RegressionDocument:
        """One regression with its history, its incident and its bisections."""

    @endpoint("POST /regressions/{regression_id}/acknowledge")
    def acknowledge(self, regression_id: int, reason: str, *, until: datetime | None = None) -> RegressionDocument:
        """Accept it, for good or `until` a time: its revision may be a baseline again."""

    @endpoint("POST /regressions/{regression_id}/dismiss")
    def dismiss(self, regression_id: int, reason: str) -> RegressionDocument:
        """Close it as false or intended."""

    @endpoint("POST /regressions/{regression_id}/reopen")
    def reopen(self, regression_id: int, *, reason: str | None = None) -> RegressionDocument:
        """Open it again; later measurements may close it as fixed."""

    @endpoint("POST /regressions/{regression_id}/assign")
    def assign(self, regression_id: int, assignee: str | None) -> RegressionDocument:
        """Assign it to a person; None is nobody."""

    @endpoint("POST /regressions/{regression_id}/note")
    def note(self, regression_id: int, text: str) -> RegressionDocument:
        """Add a note to its history."""

    @endpoint("POST /regressions/{regression_id}/due")
    def due(self, regression_id: int, due_at: datetime | None) -> RegressionDocument:
        """Set the day by which it must be fixed; None is no day."""


class Incidents(Resource[Mode]):
    """Regressions of several cases with one cause.  Changes apply to each of them."""

    @listing("/incidents")
    def list(self, *, closed: bool | None = None) -> Listing[IncidentItem]:
        """Those of all targets, the newest first; `closed` includes closed ones."""

    @endpoint("GET /incidents/{incident_id}")
    def get(self, incident_id: int) -> IncidentItem:
        """One incident with its regressions."""

    @endpoint("POST /incidents/{incident_id}/acknowledge")
    def acknowledge(self, incident_id: int, reason: str, *, until: datetime | None = None) -> IncidentItem:
        """Accept it, for good or `until` a time: its revision may be a baseline again."""

    @endpoint("POST /incidents/{incident_id}/dismiss")
    def dismiss(self, incident_id: int, reason: str) -> IncidentItem:
        """Close it as false or intended."""

    @endpoint("POST /incidents/{incident_id}/reopen")
    def reopen(self, incident_id: int, *, reason: str | None = None) -> IncidentItem:
        """Open it again; later measurements may close it as fixed."""

    @endpoint("POST /incidents/{incident_id}/assign")
    def assign(self, incident_id: int, assignee: str | None) -> IncidentItem:
        """Assign it to a person; None is nobody."""

    @endpoint("POST /incidents/{incident_id}/note")
    def note(self, incident_id: int, text: str) -> IncidentItem:
        """Add a note to its history."""

    @endpoint("POST /incidents/{incident_id}/due")
    def due(self, incident_id: int, due_at: datetime | None) -> IncidentItem:
        """Set the day by which it must be fixed; None is no day."""


class Bisections(Resource[Mode]):
    """Searches for the revision that made a case slower."""

    @listing("/bisections")
    def list(self, *, target: str | None = None, running: bool | None = None) -> Listing[BisectionItem]:
        """Bisections, the newest first; `running` leaves out those that ended."""

    @endpoint("GET /bisections/{bisection_id}")
    def get(self, bisection_id: int) -> BisectionDocument:
        """One bisection with its steps; each step is a run."""

    @endpoint("POST /bisections")
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
    ) -> BisectionDocument:
        """Search between a fast and a slow revision; an open bisection of the same is returned.

        `cases` are patterns, by default those known to be slower.
        """

    @endpoint("POST /bisections/{bisection_id}/stop")
    def stop(self, bisection_id: int) -> BisectionDocument:
        """Stop it: its queued step is cancelled, and its steps are kept."""


class Calibration(Resource[Mode]):
    """How often equal code differs, and the cases that are quarantined for it."""

    @endpoint("GET /calibration")
    def get(
        self,
        *,
        target: str | None = None,
        device: str | None = None,
        worker: str | None = None,
        days: int | None = None,
        limit: int | None = None,
    ) -> CalibrationDocument:
        """Measured false-alarm rates of equal code in the last `days`; at most `limit` cases."""

    @listing("/quarantines")
    def quarantines(self, *, target: str | None = None, released: bool | None = None) -> Listing[QuarantineItem]:
        """Quarantined cases, the newest first; `released` includes released ones."""

    @endpoint("POST /targets/{name}/calibrate")
    def start(
        self,
        target: str,
        *,
        device: str,
        revision: str | None = None,
        suite: str | None = None,
        worker: str | None = None,
    ) -> RunItem:
        """Queue a calibration of a mainline revision; by default the newest that fits, on any worker of the device."""

    @endpoint("POST /targets/{name}/quarantine")
    def quarantine(
        self, target: str, case: str, *, device: str, reason: str, provider: str | None = None
    ) -> Page[QuarantineItem]:
        """Stop reporting a case until it is released; the result is what is quarantined on its device."""

    @endpoint("POST /targets/{name}/release")
    def release(
        self, target: str, case: str, *, device: str, reason: str, provider: str | None = None
    ) -> Page[QuarantineItem]:
        """Report a quarantined case again; the result is what is still quarantined on its device."""


class Policies(Resource[Mode]):
    """Versions of policies."""

    @listing("/policies")
    def list(self) -> Listing[PolicyItem]:
        """Those that made verdicts, the newest first."""

    @endpoint("GET /policies/{digest}")
    def get(self, digest: str) -> PolicyDocument:
        """One version with its values."""

    @endpoint("POST /targets/{name}/replay")
    def replay(
        self, target: str, policy: str, *, device: str | None = None, since: datetime | None = None
    ) -> ReplayDocument:
        """Say which alarms would be new, missed or unchanged if a policy (TOML) had judged the stored runs."""
