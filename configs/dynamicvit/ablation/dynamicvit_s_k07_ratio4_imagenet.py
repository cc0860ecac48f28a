# Supplement, section B: a stronger ratio loss.
_base_ = '../dynamicvit_s_k07_imagenet.py'

model = dict(ratio_weight=4.0)
