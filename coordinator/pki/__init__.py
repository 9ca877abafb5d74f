"""The fleet's certificate authority: issue, renew and revoke certificates, enrol devices, write broker passwords.

The commands are in `cli`; TLS connections are in `fedpatch.shared.mqtt`.
"""
