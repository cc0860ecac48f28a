from .clustr import ClusTR

__all__ = ['ClusTR']
