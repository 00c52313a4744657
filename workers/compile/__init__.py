"""Facts of pushed revisions, compiled without a GPU."""
