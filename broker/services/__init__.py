"""What runs besides the connections: classes with a ``run()`` that ends only by cancellation.

Nothing here knows a request code of a client.
"""
