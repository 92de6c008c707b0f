"""Pulls that wait for messages (pull_hold), requests that wait for the disk (paged_reads), and the answers to pulls.

How a pull is checked is in ``processors/pull.py``.
"""
