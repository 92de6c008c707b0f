"""How much each peer, address and account may take, and how a request beyond that is refused."""
