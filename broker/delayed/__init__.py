"""Delayed messages: delay levels, timed messages, and their delivery.

How a send asks for a delay is in ``processors/send.py``.
"""
