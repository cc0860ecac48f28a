# Semantic FPN on ADE20K; a config adds the backbone.
_base_ = [
    'models/fpn.py',
    'datasets/ade20k.py',
    'schedules/fpn_80k.py',
    'runtime_mmseg.py',
]

default_hooks = dict(checkpoint=dict(interval=8000))
