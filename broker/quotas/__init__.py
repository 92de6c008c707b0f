"""Quotas: how much each account, address and topic may use of a broker."""
