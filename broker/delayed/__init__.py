"""Everything that waits for a time: delay levels, timer, their indexes and progress, and delivery.

Storing the delivered message is the store's append, as for any other message.
"""
