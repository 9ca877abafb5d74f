"""Speed of training: a simulated round, its steps and products, prediction, beside the peers."""
