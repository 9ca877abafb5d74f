"""ONNX export and ONNX Runtime.

The metadata of a model is described in `tasks`.
"""
