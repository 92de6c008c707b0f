"""RocketMQ 4.9's message store: plain synchronous files, no task, no socket.  Start at ``message_store``."""
