"""Accounts and their rights: the file of accounts, what a request needs, and whether it may pass.

Functions of values only: a broker reads the file, and asks here before it does anything.
"""
