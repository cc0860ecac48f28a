"""Models as ONNX files."""

from .onnx import export_onnx, load_model, trace

__all__ = ['export_onnx', 'load_model', 'trace']
