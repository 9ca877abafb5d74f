"""Export of models as ONNX, and running them with onnxruntime.

The metadata of an exported model is in `shared.tasks.model_metadata`.
"""
