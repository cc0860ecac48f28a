# What every config shares, whatever the toolbox.
custom_imports = dict(
    imports=[
        'clustr_mm',
        # What runs need besides models.
        'clustr_mm.training',
        'clustr_mm.visualization',
        'clustr_mm.runs',
    ],
    allow_failed_imports=False,
)

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', max_keep_ckpts=3),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    bad_loss=dict(type='StopOnBadLoss'),
)
vis_backends = [dict(type='LocalVisBackend')]
log_level = 'INFO'
load_from = None
resume = False
