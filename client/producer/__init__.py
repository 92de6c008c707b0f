"""Producers: publish plan, queue selectors, send results.

Nothing here is used by consumers, except to send dead letters again.
"""
