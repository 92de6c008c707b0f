"""Reads that combine queues and log: pulls, lookups by time or place, cold reads, copies of records.

Nothing here changes the store.
"""
