"""Subscription filters: one module for each type, listed in ``filter_types``.

A filter only decides about a message; the store and the clients choose the messages.
"""
