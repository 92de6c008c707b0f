"""Pulls that wait for messages (pull_hold), requests that wait for the disk (lookups), and the answers to pulls.

How a pull is checked is in ``processors/pull.py``.
"""
