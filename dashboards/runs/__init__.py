"""What the pages of runs show: their cases in groups, figures, facts and telemetry.  Pure."""
