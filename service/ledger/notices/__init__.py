"""Notices: who subscribed to what, which events wait, and the messages that are sent."""
