"""Run by each process of test_distributed.py: are gradients as in one process?

Writes into the JSON file that it is given, for each training, the largest
error of a gradient relative to the largest gradient of its parameter's tensor.
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODELS, DefaultScope

from clustr_mm.training.distillation import TokenDistiller
from clustr_mm.training.soft_extract import KeepSearch
from clustr_mm.training.sparsification import SparseClassifier
from tests.test_training.small import classifier, images, samples
from tests.tiny_models import TRAINED, clustr_arch

GLOBAL_BATCH = 4
HEAD = dict(type='LinearClsHead', num_classes=3, in_channels=32)


def clustr():
    model = MODELS.build(
        dict(
            type='ImageClassifier',
            backbone=dict(
                type='ClusTR',
                arch=clustr_arch(),
                out_indices=(3,),
                drop_path_rate=0.0,
            ),
            neck=dict(type='GlobalAveragePooling'),
            head=HEAD,
        )
    )
    # A part of a batch has other statistics than the whole: that is what
    # SyncBN is for, which knows only CUDA.
    model.apply(without_statistics)
    return model


def without_statistics(module):
    if isinstance(module, torch.nn.BatchNorm2d):
        module.eval()
        module.train = lambda mode=True: module


def sparse(**kwargs):
    """DynamicViT and its teacher."""
    dense = classifier('ThinViT')
    dense.init_weights()
    with tempfile.NamedTemporaryFile(suffix='.pth') as file:
        torch.save(dense.state_dict(), file.name)
        model = SparseClassifier(
            dict(
                TRAINED, type='DynamicViT', keep=(0.7, 0.5), reduce_at=(1, 2)
            ),
            HEAD,
            pretrained=file.name,
            **kwargs,
        )
        model.init_weights()
    return model


def distiller():
    return TokenDistiller(
        backbone=dict(TRAINED, type='EViT', keep=(1, 0.5, 0.5, 1)),
        teacher=dict(TRAINED, type='ThinViT', out_type='raw'),
        teacher_dims=32,
    )


def search():
    return KeepSearch(
        backbone=dict(TRAINED, type='SoftExtractDeiT'), head=HEAD
    )


TRAININGS = {
    'ClusTR': clustr,
    'HVT': partial(classifier, 'HVT'),
    'TokenPoolingDeiT': partial(
        classifier, 'TokenPoolingDeiT', backbone=dict(keep=(16, 9, 5, 3))
    ),
    'EViT': partial(classifier, 'EViT', backbone=dict(keep=(1, 0.5, 0.5, 1))),
    'DynamicViT': sparse,
    'DynamicViT, KL of tokens, share of each image': partial(
        sparse, token_loss='kl', ratio_per_image=True
    ),
    'distillation': distiller,
    'soft extract': search,
}


def decide(scores, hard):
    """Gumbel's decisions with noise that depends on the scores alone."""
    noisy = scores + 2 * (1000 * scores.detach()).cos()
    soft = noisy.softmax(-1)
    chosen = torch.zeros_like(soft).scatter(-1, soft.argmax(-1)[..., None], 1)
    return chosen - soft.detach() + soft


def gradients(model, inputs, data_samples):
    losses = model(inputs, data_samples, mode='loss')
    loss = sum(v for k, v in losses.items() if 'loss' in k)
    loss.backward()
    module = getattr(model, 'module', model)
    return {
        name: p.grad.clone()
        for name, p in module.named_parameters()
        if p.grad is not None
    }


def prepared(build):
    """A model in training, the same in all processes."""
    torch.manual_seed(0)
    model = build()
    if not model.is_init:
        model.init_weights()
    # Zeros would hide what is behind them.
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return model.train(), images(GLOBAL_BATCH), samples(GLOBAL_BATCH)


def distributed_gradients(model, inputs, data_samples):
    share = GLOBAL_BATCH // get_world_size()
    mine = slice(get_rank() * share, (get_rank() + 1) * share)
    wrapped = MMDistributedDataParallel(model, broadcast_buffers=False)
    return gradients(wrapped, inputs[mine], data_samples[mine])


def worst_error(found, expected):
    assert found.keys() == expected.keys()
    assert any(g.abs().max() > 1e-4 for g in found.values())
    return max(
        ((found[k] - g).abs().max() / g.abs().max().clamp_min(1e-3)).item()
        for k, g in expected.items()
    )


def main():
    torch.set_num_threads(1)
    with (
        DefaultScope.overwrite_default_scope('mmpretrain'),
        mock.patch('torch.nn.functional.gumbel_softmax', decide),
    ):
        # As long as there is no process group, each is a single process.
        expected = {k: gradients(*prepared(b)) for k, b in TRAININGS.items()}
        torch.distributed.init_process_group('gloo')
        errors = {
            name: worst_error(
                distributed_gradients(*prepared(build)), expected[name]
            )
            for name, build in TRAININGS.items()
        }
    if get_rank() == 0:
        # Not printed, where all processes print.
        Path(sys.argv[1]).write_text(json.dumps(errors))
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
