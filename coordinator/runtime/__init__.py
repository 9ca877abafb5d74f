"""The coordinator's process: start, resume, the event loop, and the effects on broker and disk.

Decisions belong in `rounds`, files and tables in `storage`.
"""
