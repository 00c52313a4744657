"""Notices in words: titles of events, subject lines and messages."""
