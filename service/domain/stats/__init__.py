"""The statistics of one revision, pure: logs of ratios in, estimates, zones and error rates out.

Nothing in here knows a case, a policy or a session; `service.domain.verdicts.judge` puts them together,
and docs/statistics.md says
why each is as it is, with the formulas and how often they err.
"""
