"""One connection to a broker or name server: handshake, correlation, pool, requests that brokers send.

Nothing here knows topics or groups.
"""
