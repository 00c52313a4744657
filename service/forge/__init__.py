"""Speaking with forges: signatures, events, the GitHub client."""
