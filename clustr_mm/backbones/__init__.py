from .clustr import ClusTR
from .dynamic_vit import DynamicViT
from .evit import EViT
from .hvt import HVT
from .lvvit import DynamicLVViT, LVViT
from .token_pooling import TokenPoolingDeiT
from .tome import ToMe
from .vit import ThinViT

__all__ = [
    'ClusTR',
    'DynamicLVViT',
    'DynamicViT',
    'EViT',
    'HVT',
    'LVViT',
    'ThinViT',
    'ToMe',
    'TokenPoolingDeiT',
]
