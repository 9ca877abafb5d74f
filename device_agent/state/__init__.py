"""The files in a device's state directory: patches, the model held, downloads, the update to send, status.

Every write here survives a power cut.
"""
