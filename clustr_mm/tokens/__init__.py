"""Plain functions on tokens: torch, and nothing of OpenMMLab."""
