# Supplement, section B: two stages with as much left to compute.
_base_ = '../dynamicvit_s_k07_imagenet.py'

model = dict(backbone=dict(keep=[0.6, 0.36]))
