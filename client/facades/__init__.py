"""How callers without trio use the clients: one trio thread and the calls into it.

The public names are ``triomq.client.sync`` and ``triomq.client.asyncio``; no logic is written here twice.
"""
