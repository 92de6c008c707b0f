"""The client's view of a cluster: name servers, routes, heartbeats of groups, the shared instance.

No messages pass here except through the calls it offers to producers and consumers.
"""
