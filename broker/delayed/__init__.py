"""Messages that wait for a time: delay levels, times of their own, and their delivery.

How a send asks for a delay is in ``processors/send.py``.
"""
