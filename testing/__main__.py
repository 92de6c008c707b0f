"""The process of a ``BrokerProcess``."""

from triomq.testing.process import serve

if __name__ == "__main__":
    serve()
