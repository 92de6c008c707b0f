"""Options of the data source: the table, their values and checks.

Nothing here connects to a broker.
"""
