"""Pulls that wait: for messages (hold), for the disk (lookups), and their timeout.

How a pull is answered is in ``processors/pull.py``.
"""
