"""The statistics of one revision, pure: log-ratios in, estimates, zones and error rates out.

Nothing in here knows cases, policies or sessions; `service.domain.verdicts.judge` combines them.  docs/statistics.md
gives the reasons, the formulas and the error rates.
"""
