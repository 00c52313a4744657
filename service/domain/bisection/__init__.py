"""Which revision made a case slower."""
