"""Counters and their history, as administrators ask for them.

No decision depends on a counter.
"""
