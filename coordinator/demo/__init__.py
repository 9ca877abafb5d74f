"""`fedpatch demo`: a broker, a fleet of device agents and a coordinator on this machine.

Nothing here is used by a coordinator in service.
"""
