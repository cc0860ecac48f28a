# UperNet on ADE20K; a config adds the backbone.
_base_ = [
    'models/upernet.py',
    'datasets/ade20k.py',
    'schedules/upernet_160k.py',
    'runtime_mmseg.py',
]

default_hooks = dict(checkpoint=dict(interval=16000))
