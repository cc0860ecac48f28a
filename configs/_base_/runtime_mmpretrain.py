_base_ = 'runtime.py'

default_scope = 'mmpretrain'
default_hooks = dict(
    checkpoint=dict(save_best='accuracy/top1'),
    visualization=dict(type='VisualizationHook', enable=False),
)
visualizer = dict(
    type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')]
)
