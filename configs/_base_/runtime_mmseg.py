_base_ = 'runtime.py'

default_scope = 'mmseg'
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, save_best='mIoU'),
    visualization=dict(type='SegVisualizationHook'),
)
log_processor = dict(by_epoch=False)
visualizer = dict(
    type='SegLocalVisualizer',
    vis_backends=[dict(type='LocalVisBackend')],
    name='visualizer',
)
tta_model = dict(type='SegTTAModel')
