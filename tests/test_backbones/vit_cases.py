"""The plain ViTs in small, their recorded references, and their costs."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from clustr_mm.backbones.dynamic_vit import DynamicViT
from clustr_mm.backbones.evit import EViT
from clustr_mm.backbones.hvt import HVT
from clustr_mm.backbones.lvvit import DynamicLVViT, LVViT
from clustr_mm.backbones.token_pooling import TokenPoolingDeiT
from clustr_mm.backbones.tome import ToMe
from clustr_mm.backbones.vit import ThinViT, vit_arch
from clustr_mm.checkpoints import convert

# Models this small lose by a second thread, badly on a busy machine.
torch.set_num_threads(1)

GOLDEN = Path(__file__).parents[1] / 'data' / 'golden'
ARCH = vit_arch(48, 6, 3)
SMALL = {'arch': ARCH, 'img_size': 32, 'patch_size': 4}
KEEP = [64, 40, 20, 9, 9, 3]


def _pooling(**kwargs):
    return (TokenPoolingDeiT, {'keep': KEEP, **kwargs})


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
    'lvvit': (LVViT, {}),
    'dynamic-lvvit': (DynamicLVViT, {'keep': 0.6}),
}


def build(name, seed=0, **kwargs):
    """A model in eval mode with all weights random, biases too."""
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


def images(batch=2, height=32, width=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, height, width, generator=generator)


def golden(name):
    """Settings, input and outputs as recorded; the weights in our names."""
    record = torch.load(GOLDEN / f'{name}.pt', weights_only=True)
    random = np.random.RandomState(record['input_seed'])
    img = random.standard_normal(record['input_shape']).astype('float32')
    source = name.split('_')[0]
    state_dict = convert(record['state_dict'], source)
    record['config'].update(
        arch=vit_arch(
            48, 6, 3, mlp_ratio=int(record['config'].get('mlp_ratio', 4))
        )
    )
    return record, torch.from_numpy(img), state_dict


def part(state_dict, name):
    """The part of a state dict that belongs to a backbone or a head."""
    prefix = f'{name}.'
    return {
        key.removeprefix(prefix): value
        for key, value in state_dict.items()
        if key.startswith(prefix)
    }


def logits(x, state_dict):
    head = part(state_dict, 'head')
    return torch.nn.functional.linear(x, head['fc.weight'], head['fc.bias'])


def giga_macs(model, img_size=224):
    """Multiply-accumulates in G of one image, nothing being computed."""
    img = torch.empty(1, 3, img_size, img_size, device='meta')
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(img)
    return counter.get_total_flops() / 2e9


def on_meta(model, *args, **kwargs):
    with torch.device('meta'):
        return model(*args, **kwargs)
