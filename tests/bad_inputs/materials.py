"""Good inputs: small configs, data sets, checkpoints, pictures.

A case spoils a copy of one of them.
"""

import shutil
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.config import Config

from clustr_mm.analysis.models import build_model
from clustr_mm.runs import smoke
from clustr_mm.shapes import make_shapes
from tests.runs import ROOT
from tests.tiny_models import vit_arch

ARCH = vit_arch(16, 2, 2, mlp_ratio=1)
EVIT = dict(
    _delete_=True,
    type='EViT',
    arch=ARCH,
    keep=0.7,
    reduce_at=[1],
    img_size=64,
)
DENSE = dict(EVIT, out_type='featmap')
CONFIGS = {
    'classify': (
        'quickstart/evit_shapes.py',
        {'backbone': EVIT, 'head.in_channels': 16},
    ),
    'segment': (
        'evit/fpn_evit_s_k07_ade20k.py',
        {
            'backbone': DENSE,
            'neck.in_channels': 16,
            'decode_head.num_classes': 8,
        },
    ),
    'detect': (
        'evit/retinanet_evit_s_k07_coco.py',
        {'backbone': DENSE, 'neck.in_channels': 16},
    ),
    'pose': (
        'evit/pose_evit_s_k07_wholebody.py',
        {'backbone': DENSE, 'head.in_channels': 16},
    ),
}
TASKS = dict(
    classify='classification',
    segment='segmentation',
    detect='detection',
    pose='pose',
)


def write_config(name: str, folder: Path):
    """One training iteration on all pictures, and a test."""
    base, model = CONFIGS[name]
    cfg = Config.fromfile(ROOT / 'configs' / base)
    cfg.merge_from_dict(smoke.options(cfg))
    cfg.merge_from_dict({f'model.{k}': v for k, v in model.items()})
    cfg.model.pop('pretrained', None)
    data = folder / name
    num = 10 if name == 'classify' else 4
    make_shapes(TASKS[name], data, num, size=64, val=0.5)
    for loader in smoke.LOADERS:
        cfg[loader].batch_size = num // 2
        cfg[loader].drop_last = False
        cfg[loader].pop('persistent_workers', None)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=False)
    cfg.train_dataloader.pop('batch_sampler', None)
    by_epoch = 'max_epochs' in cfg.train_cfg
    unit = 'epochs' if by_epoch else 'iters'
    cfg.train_cfg[f'max_{unit}'] = 1
    cfg.val_dataloader = cfg.val_evaluator = cfg.val_cfg = None
    cfg.custom_hooks = []
    cfg.default_hooks.checkpoint.update(save_best=None, interval=1)
    cfg.work_dir = 'work'
    cfg.dump(folder / f'{name}.py')


def write_all(folder: Path):
    folder.mkdir(parents=True, exist_ok=True)
    for name in CONFIGS:
        write_config(name, folder)
        cfg = Config.fromfile(folder / f'{name}.py')
        state = build_model(cfg).state_dict()
        torch.save(dict(state_dict=state), folder / f'{name}.pth')
    search = ROOT / 'configs/quickstart/search_deit_shapes.py'
    cfg = Config.fromfile(search)
    cfg.load_from = None
    cfg.dump(folder / 'search.py')
    shutil.copy(
        ROOT / 'configs/quickstart/token_pooling_shapes.py', folder / 'base.py'
    )
    Config.fromfile(ROOT / 'configs/quickstart/token_pooling_shapes.py').dump(
        folder / 'base.py'
    )
    deit = build_model(Config(dict(model=dict(type='ThinViT', arch=ARCH))))
    torch.save(dict(state_dict=deit.state_dict()), folder / 'deit.pth')
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    cv2.imwrite(str(folder / 'image.png'), image)
    cv2.imwrite(str(folder / 'image.jpg'), image)
    return folder


# A config of nothing but a backbone.
SHAPE = """
custom_imports = dict(imports=['clustr_mm'])
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='{type}'),
    data_preprocessor={{}},
)
"""
