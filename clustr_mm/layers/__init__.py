"""Modules that the backbones share."""
