"""Which queues a member has: strategies, rebalancing, the broker's queue locks.

The strategies are pure functions.
"""
