"""Writing rows to topics: rows to messages, batches, sending."""
