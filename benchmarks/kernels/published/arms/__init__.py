"""Providers of the studies that no recipe can name.  Imported in the processes of contenders; needs torch."""
