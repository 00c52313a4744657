"""Regressions, incidents, bisections, calibration, policies and weekly reports."""

from collections.abc import Sequence
from datetime import datetime

from . import models
from .calls import Listing
from .resources import Mode, Resource, endpoint, listing


class Regressions(Resource[Mode]):
    """Confirmed slow-downs of mainlines."""

    @listing("/regressions")
    def list(
        self, *, state: Sequence[models.RegressionState] | None = None, expand: Sequence[str] | None = None
    ) -> Listing[models.RegressionItem]:
        """Those of all targets, the newest first, in one of these states; `expand=["events"]` adds histories."""

    @endpoint("GET /regressions/{regression_id}")
    def get(self, regression_id: int) -> models.RegressionDocument:
        """One regression with its history, its incident and its bisections."""

    @endpoint("POST /regressions/{regression_id}/acknowledge")
    def acknowledge(
        self, regression_id: int, reason: str, *, until: datetime | None = None
    ) -> models.RegressionDocument:
        """Accept it, for good or `until` a time: its revision may be a baseline again."""

    @endpoint("POST /regressions/{regression_id}/dismiss")
    def dismiss(self, regression_id: int, reason: str) -> models.RegressionDocument:
        """Close it as false or intended."""

    @endpoint("POST /regressions/{regression_id}/reopen")
    def reopen(self, regression_id: int, *, reason: str | None = None) -> models.RegressionDocument:
        """Open it again; later measurements may close it as fixed."""

    @endpoint("POST /regressions/{regression_id}/assign")
    def assign(self, regression_id: int, assignee: str | None) -> models.RegressionDocument:
        """Assign it to a person; None is nobody."""

    @endpoint("POST /regressions/{regression_id}/note")
    def note(self, regression_id: int, text: str) -> models.RegressionDocument:
        """Add a note to its history."""

    @endpoint("POST /regressions/{regression_id}/due")
    def due(self, regression_id: int, due_at: datetime | None) -> models.RegressionDocument:
        """Set the day by which it must be fixed; None is no day."""


class Incidents(Resource[Mode]):
    """Regressions of several cases with one cause.  Changes apply to each of them."""

    @listing("/incidents")
    def list(self, *, closed: bool | None = None) -> Listing[models.IncidentItem]:
        """Those of all targets, the newest first; `closed` includes closed ones."""

    @endpoint("GET /incidents/{incident_id}")
    def get(self, incident_id: int) -> models.IncidentItem:
        """One incident with its regressions."""

    @endpoint("POST /incidents/{incident_id}/acknowledge")
    def acknowledge(self, incident_id: int, reason: str, *, until: datetime | None = None) -> models.IncidentItem:
        """Accept it, for good or `until` a time: its revision may be a baseline again."""

    @endpoint("POST /incidents/{incident_id}/dismiss")
    def dismiss(self, incident_id: int, reason: str) -> models.IncidentItem:
        """Close it as false or intended."""

    @endpoint("POST /incidents/{incident_id}/reopen")
    def reopen(self, incident_id: int, *, reason: str | None = None) -> models.IncidentItem:
        """Open it again; later measurements may close it as fixed."""

    @endpoint("POST /incidents/{incident_id}/assign")
    def assign(self, incident_id: int, assignee: str | None) -> models.IncidentItem:
        """Assign it to a person; None is nobody."""

    @endpoint("POST /incidents/{incident_id}/note")
    def note(self, incident_id: int, text: str) -> models.IncidentItem:
        """Add a note to its history."""

    @endpoint("POST /incidents/{incident_id}/due")
    def due(self, incident_id: int, due_at: datetime | None) -> models.IncidentItem:
        """Set the day by which it must be fixed; None is no day."""


class Bisections(Resource[Mode]):
    """Searches for the revision that made a case slower."""

    @listing("/bisections")
    def list(self, *, target: str | None = None, running: bool | None = None) -> Listing[models.BisectionItem]:
        """Bisections, the newest first; `running` leaves out those that ended."""

    @endpoint("GET /bisections/{bisection_id}")
    def get(self, bisection_id: int) -> models.BisectionDocument:
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
    ) -> models.BisectionDocument:
        """Search between a fast and a slow revision; an open bisection of the same is returned.

        `cases` are patterns, by default those known to be slower.
        """

    @endpoint("POST /bisections/{bisection_id}/stop")
    def stop(self, bisection_id: int) -> models.BisectionDocument:
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
    ) -> models.CalibrationDocument:
        """Measured false-alarm rates of equal code in the last `days`; at most `limit` cases."""

    @listing("/quarantines")
    def quarantines(self, *, target: str | None = None, released: bool | None = None) -> Listing[models.QuarantineItem]:
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
    ) -> models.RunItem:
        """Queue a calibration of a mainline revision; by default the newest that fits, on any worker of the device."""

    @endpoint("POST /targets/{name}/quarantine")
    def quarantine(
        self, target: str, case: str, *, device: str, reason: str, provider: str | None = None
    ) -> models.Page[models.QuarantineItem]:
        """Stop reporting a case until it is released; the result is what is quarantined on its device."""

    @endpoint("POST /targets/{name}/release")
    def release(
        self, target: str, case: str, *, device: str, reason: str, provider: str | None = None
    ) -> models.Page[models.QuarantineItem]:
        """Report a quarantined case again; the result is what is still quarantined on its device."""


class Policies(Resource[Mode]):
    """Versions of policies."""

    @listing("/policies")
    def list(self) -> Listing[models.PolicyItem]:
        """Those that made verdicts, the newest first."""

    @endpoint("GET /policies/{digest}")
    def get(self, digest: str) -> models.PolicyDocument:
        """One version with its values."""

    @endpoint("POST /targets/{name}/replay")
    def replay(
        self, target: str, policy: str, *, device: str | None = None, since: datetime | None = None
    ) -> models.ReplayDocument:
        """Say which alarms would be new, missed or unchanged if a policy (TOML) had judged the stored runs."""


class Weekly(Resource[Mode]):
    """What happened in a week.  `week` is an ISO week such as 2026-W47, and the current one by default."""

    @endpoint("GET /weekly")
    def get(
        self, *, week: str | None = None, target: str | None = None, device: str | None = None
    ) -> models.WeeklyDocument:
        """Movers by time at stake, regressions and gaps to SOTA opened and closed, and what was measured."""

    @endpoint("GET /weekly/markdown", accept="text/markdown")
    def markdown(self, *, week: str | None = None, target: str | None = None, device: str | None = None) -> str:
        """The same as Markdown."""
