"""The device on the owner's own MQTT bus: Home Assistant's discovery, the agent's state, and predictions.

It is a separate process with its own credentials, at any broker; the agent and the fleet's broker are not involved.
"""
