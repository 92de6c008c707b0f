"""Connections to brokers and name servers: dialling, requests and responses, the pool, requests from brokers.

Nothing here knows topics or groups.
"""
