"""The connection to the broker: session, TLS, reconnecting, outgoing messages.

The one room that knows paho-mqtt.
"""
