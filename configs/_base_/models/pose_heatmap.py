# Heat maps of 133 key points by three deconvolutions from a map of stride 32:
# a config adds the backbone and its channels.
model = dict(
    type='TopdownPoseEstimator',
    data_preprocessor=dict(
        type='PoseDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
    ),
    head=dict(
        type='HeatmapHead',
        out_channels=133,
        loss=dict(type='KeypointMSELoss', use_target_weight=True),
        decoder=dict(
            type='MSRAHeatmap',
            input_size=(192, 256),
            heatmap_size=(48, 64),
            sigma=2,
        ),
    ),
    test_cfg=dict(flip_test=True, flip_mode='heatmap', shift_heatmap=True),
)
