"""Notices: which events people are told of, and when several of them become one message.  Pure."""
