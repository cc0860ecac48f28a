_base_ = 'pose_clustr_s_wholebody.py'

model = dict(backbone=dict(arch='base', drop_path_rate=0.3))
