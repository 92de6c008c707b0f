"""Tools for a stopped store: check, repair, export and import.

The broker uses nothing of it.
"""
