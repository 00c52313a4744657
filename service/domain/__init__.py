"""Decisions, pure: values in, values out.  Imports no table, session, setting, clock or client."""
