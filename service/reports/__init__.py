"""Renderers of a Report: Markdown for forges, a table for terminals, JSON for programs.  Pure."""
