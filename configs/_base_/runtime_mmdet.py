_base_ = 'runtime.py'

default_scope = 'mmdet'
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
visualizer = dict(
    type='DetLocalVisualizer',
    vis_backends=[dict(type='LocalVisBackend')],
    name='visualizer',
)
