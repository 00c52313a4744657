"""The documents of the API: served by the server, read by the client, printed by the command line.

Times are RFC 3339 in UTC, and numbers that are not finite are null.  `XItem` is an entry of a list, `XDocument` the
whole thing.
"""
