"""The weekly report: the facts of a week, composed into one document, and its renderings."""
