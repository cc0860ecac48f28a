"""Models whose outputs were recorded from published code, and their costs."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from clustr_mm.backbones.vit import vit_arch
from clustr_mm.checkpoints.layouts import convert

GOLDEN = Path(__file__).parent / 'data' / 'golden'


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


def rebuild(kind, record, state_dict, **options):
    """The recorded model in eval mode, with its weights.

    Args:
        kind: Class of its backbone.
        record: What `golden` has read, with the weights.
        state_dict: These.
        options: Settings that the backbones do not share, by our names.
    """
    config = record['config']
    model = kind(
        config['arch'],
        img_size=config['img_size'],
        patch_size=config['patch_size'],
        **options,
    )
    model.load_state_dict(part(state_dict, 'backbone'))
    return model.eval()


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
