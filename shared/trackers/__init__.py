"""Experiment trackers: the interface that rounds are fed to, and adapters to TensorBoard, MLflow and Weights & Biases."""
