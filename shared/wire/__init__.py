"""The wire protocol: messages and their codec, topics, and chunked transfer of blobs.

This room is pure: no network, clock or thread. Code that sends or receives belongs in `shared.mqtt`.
"""
