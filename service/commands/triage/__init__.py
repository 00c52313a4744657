"""Commands about regressions: what to do about them, and when they alarm."""
