"""Workers: build revisions, run contenders in a sandbox, and do periodic tasks."""
