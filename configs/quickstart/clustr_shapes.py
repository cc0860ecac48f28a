# A small ClusTR tells what a generated picture shows: some ten minutes on
# two cores. The backbone starts from the one that `make quickstart` trains.
#   python tools/make_shapes.py --task classification --num 2500 \
#       --out data/shapes_classification
_base_ = [
    '../_base_/models/small_classifier.py',
    '../_base_/models/small_clustr.py',
    '../_base_/datasets/shapes_classification.py',
    '../_base_/schedules/shapes_20e.py',
    '../_base_/runtime_mmpretrain.py',
]

model = dict(
    backbone=dict(
        _base_.small_clustr,
        out_indices=(3,),
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/quickstart/work/iter_600.pth',
            prefix='backbone.',
        ),
    ),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(num_classes=5, in_channels=192),
)
default_hooks = dict(logger=dict(interval=50), checkpoint=dict(interval=5))
randomness = dict(seed=0)
