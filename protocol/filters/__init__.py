"""Subscription expressions, one module for each type of expression.

A filter only decides; which messages it is asked about is up to the store and the clients.
"""
