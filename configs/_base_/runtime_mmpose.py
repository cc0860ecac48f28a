_base_ = 'runtime.py'

default_scope = 'mmpose'
default_hooks = dict(
    checkpoint=dict(save_best='coco-wholebody/AP', rule='greater'),
    visualization=dict(type='PoseVisualizationHook', enable=False),
)
custom_hooks = [dict(type='SyncBuffersHook')]
log_processor = dict(
    type='LogProcessor', window_size=50, by_epoch=True, num_digits=6
)
visualizer = dict(
    type='PoseLocalVisualizer',
    vis_backends=[dict(type='LocalVisBackend')],
    name='visualizer',
)
