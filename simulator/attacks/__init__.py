"""Bad clients in a simulation: what they send, what they train on, and what they achieve."""
