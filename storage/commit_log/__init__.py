"""The commit log: append and read records, scan past damage, quarantine damaged files.

Which queue a record belongs to is decided in ``append``.
"""
