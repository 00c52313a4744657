"""How far results can be trusted: error rates of this service, and quarantined cases."""
