"""Used by broker, client and programs alike: TLS over memory buffers, and log set-up.

`ssl` loads `socket`, so TLS cannot be in `protocol`.  Imports nothing but `protocol`.
"""
