"""The process of a ``BrokerProcess``."""

from triomq.testing.host import serve

if __name__ == "__main__":
    serve()
