"""Notices: which events people are notified of, and when several of them become one message.  Pure."""
