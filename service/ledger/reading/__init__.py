"""Queries of the API that only it has: filtered lists in pages, comparisons of revisions, and exports."""
