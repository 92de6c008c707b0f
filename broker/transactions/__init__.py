"""Transactions: half messages, their decisions, and checks of undecided ones.

Processors of the requests are in ``processors/waiting.py``.
"""
