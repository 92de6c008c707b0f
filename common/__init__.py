"""Used by broker, client and programs alike: TLS over memory buffers, log set-up, and the settings of a broker.

`ssl` loads `socket`, so TLS cannot be in `protocol`.  Imports nothing but `protocol`.
"""
