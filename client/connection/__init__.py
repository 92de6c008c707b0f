"""One connection to a broker or name server: correlation, pool, requests that brokers send.

Nothing here knows topics or groups.
"""
