"""Sockets, connections and admission; requests that the broker sends to clients.

No request code is handled here: a connection passes each command to the processor table.
"""
