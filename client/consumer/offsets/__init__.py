"""Progress of consumers: offsets at brokers, offsets in local files, and the first offset of a queue."""
