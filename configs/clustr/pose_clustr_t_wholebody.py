_base_ = 'pose_clustr_s_wholebody.py'

model = dict(backbone=dict(arch='tiny'))
