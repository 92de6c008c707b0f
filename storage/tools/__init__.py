"""Checks of a stopped store.  The broker does not import them."""
