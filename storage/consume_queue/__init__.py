"""Consume queues: units, files and the table of all queues.

Nothing here reads the commit log; what compares the two is in ``recovery`` and ``reading``.
"""
