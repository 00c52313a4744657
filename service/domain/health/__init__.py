"""The state of everything at a glance: what needs a person, how targets did lately, and when queues end.  Pure."""
