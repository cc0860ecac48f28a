# Whole-body pose on COCO-WholeBody; a config adds the backbone.
_base_ = [
    'models/pose_heatmap.py',
    'datasets/wholebody.py',
    'schedules/pose_210e.py',
    'runtime_mmpose.py',
]
