"""Pages for those who run the service: keys, people and the audit log."""
