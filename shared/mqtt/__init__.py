"""The connection to the MQTT broker: session, TLS, reconnecting, outgoing messages.

Only this room imports paho-mqtt, and in it only `client`.
"""
