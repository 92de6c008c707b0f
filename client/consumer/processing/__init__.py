"""Giving messages to handlers: process queues, concurrent and orderly services, workers, send back.

Nothing here talks to a broker except to send a message back.
"""
