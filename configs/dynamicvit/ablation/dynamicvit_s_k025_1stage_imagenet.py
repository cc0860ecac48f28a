# Supplement, section B: one stage with as much left to compute.
_base_ = '../dynamicvit_s_k07_imagenet.py'

model = dict(backbone=dict(keep=[0.25]))
