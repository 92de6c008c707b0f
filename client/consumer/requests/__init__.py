"""The requests of consumers to brokers: pulls, offsets, members, queue locks.

Nothing here keeps state or retries.
"""
