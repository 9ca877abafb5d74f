"""Bad clients in a simulation: their updates, their training data, and the result of their attack."""
