"""Pulls that wait for messages, and the answers to pulls.

How a pull is checked is in ``processors/pull.py``.
"""
