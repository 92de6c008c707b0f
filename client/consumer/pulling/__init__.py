"""Getting messages from brokers: the pull loop of a queue, flow control, remote calls, buffers for polls.

What happens to the messages is decided in ``processing``.
"""
