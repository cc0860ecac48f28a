"""The models of the tests: plain ViTs with all that thins them, and ClusTRs.

They are as small as what they show allows; `vit_arch` and `clustr_arch` give
other sizes. `tests/recorded.py` has the models of which outputs are recorded.
"""

import os

import torch

from clustr_mm.backbones.clustr import ClusTR
from clustr_mm.backbones.dynamic_vit import DynamicViT
from clustr_mm.backbones.evit import EViT
from clustr_mm.backbones.hvt import HVT
from clustr_mm.backbones.lvvit import DynamicLVViT, LVViT
from clustr_mm.backbones.token_pooling import TokenPoolingDeiT
from clustr_mm.backbones.tome import ToMe
from clustr_mm.backbones.vit import ThinViT, vit_arch

# Models this small lose by a second thread, badly on a busy machine; and what
# a test starts has to round as the test does.
torch.set_num_threads(1)
os.environ.setdefault('OMP_NUM_THREADS', '1')

# 8 x 8 patches.
ARCH = vit_arch(48, 6, 3)
SMALL = {'arch': ARCH, 'img_size': 32, 'patch_size': 4}
KEEP = [64, 40, 20, 9, 9, 3]
# What is trained: 4 x 4 patches.
TRAINED_ARCH = vit_arch(32, 4, 2, mlp_ratio=2)
TRAINED = {'arch': TRAINED_ARCH, 'img_size': 32, 'patch_size': 8}


def _pooling(**kwargs):
    return (TokenPoolingDeiT, {'keep': KEEP, **kwargs})


# Two kinds of reducers in one network.
EARLY_AND_LATE = [
    {'type': 'AttentiveTokens', 'block': 1, 'keep': 0.6},
    {'type': 'MergedTokens', 'block': 3, 'merge': 0.1},
    {'type': 'MergedTokens', 'block': 4, 'merge': 0.1},
]
# Every model and variant: a class and what it needs beside `SMALL`.
CASES = {
    'dense': (ThinViT, {}),
    'hvt': (HVT, {'num_stages': 3}),
    'hvt-2d': (HVT, {'num_stages': 2, 'dims': 2, 'op': 'avg'}),
    'hvt-conv': (HVT, {'num_stages': 3, 'op': 'conv'}),
    'kmeans': _pooling(method='kmeans', weighted=False),
    'wkmeans-carry': _pooling(method='kmeans', carry=True),
    'kmedoids': _pooling(method='kmedoids', weighted=False, init='random'),
    'wkmedoids': _pooling(method='kmedoids'),
    'power': _pooling(method='significance', qk_norm='learned'),
    'importance': _pooling(method='importance', qk_norm='fixed'),
    'random': _pooling(method='random'),
    'conv': _pooling(method='conv', reduce_at=[1, 3]),
    'evit': (EViT, {'keep': 0.6}),
    'evit-drop': (EViT, {'keep': 0.6, 'fuse': False}),
    'dynamicvit': (DynamicViT, {'keep': 0.6}),
    'tome': (ToMe, {'merge': 9}),
    'evit-tome': (ThinViT, {'reducers': EARLY_AND_LATE, 'carry': True}),
    'lvvit': (LVViT, {}),
    'dynamic-lvvit': (DynamicLVViT, {'keep': 0.6}),
}


def build(name, seed=0, **kwargs):
    """One of `CASES` in eval mode with all weights random, biases too."""
    model, special = CASES[name]
    settings = {**SMALL, **special}
    if model is HVT and kwargs.get('out_type') == 'cls_token':
        kwargs['out_type'] = 'avg_featmap'
    torch.manual_seed(seed)
    model = model(**{**settings, **kwargs})
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm | torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.weight, 1, 0.1)
    return model.eval()


def clustr_arch(depths=(1, 1, 1, 1), width=8):
    """A pyramid whose heads have ``width`` channels."""
    heads = tuple(range(1, len(depths) + 1))
    return {
        'depths': depths,
        'dims': tuple(width * number for number in heads),
        'num_heads': heads,
        'ffn_ratios': (2,) * len(depths),
    }


def clustr(depths=(1, 1, 1, 1), width=8, **options):
    """A ClusTR with initial weights, in training mode."""
    torch.manual_seed(0)
    model = ClusTR(clustr_arch(depths, width), **options)
    model.init_weights()
    return model


def images(batch=2, height=32, width=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, height, width, generator=generator)
