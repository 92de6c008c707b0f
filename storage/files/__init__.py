"""Files of any kind: the file system, mapped files and queues of them, locks, JSON tables, the checkpoint.

Nothing here knows what a message is.
"""
