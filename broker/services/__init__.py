"""What runs besides the connections: classes with a ``run()`` that ends only by cancellation."""
