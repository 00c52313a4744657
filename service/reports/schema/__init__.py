"""The wire format: every document of the API and of `--format json`, defined once.

Times are RFC 3339 in UTC, and numbers that are not finite are null.  `XItem` is an entry of a list, `XDocument` the
whole thing.
"""
