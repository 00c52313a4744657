"""What is done: building revisions, running contenders in a sandbox, and looking after runs."""
