"""Comments and checks: composed, queued, sent."""
