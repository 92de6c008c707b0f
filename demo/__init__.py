"""``python -m triomq.demo``: a broker, a producer and two consumer groups with real data, and the results."""
