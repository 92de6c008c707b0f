"""Counters and their history, as administrators query them.

No decision depends on a counter.
"""
