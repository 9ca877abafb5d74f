"""Messages, codec, topics and chunked transfer: all that coordinator and device agree on.

Pure: no network, no clock, no thread.
"""
