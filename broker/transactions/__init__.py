"""Transactions: half messages, their decisions, and the checks of those that nobody has decided.

Processors of the requests are in ``processors/transaction.py``.
"""
