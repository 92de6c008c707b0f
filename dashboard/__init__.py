"""The dashboard: pages about a cluster, for people with a browser.

A separate process over the administration API of the client, so it serves brokers of triomq and of Apache alike and
cannot stall one.  ``serving`` runs it on trio; ``app`` answers requests; ``pages`` has a module for each family of
pages; ``watched`` has the connection to a cluster and the answers remembered of it.
"""
