"""Subscription filters: by tags and by SQL92, listed in ``filter_types``.

A filter only decides about a message; the store and the clients choose the messages.
"""
