"""Consumers: the push consumer, whose handler gets messages, and the pull consumer, which asks for them."""
