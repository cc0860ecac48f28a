# Supplement, section B: a weaker ratio loss.
_base_ = '../dynamicvit_s_k07_imagenet.py'

model = dict(ratio_weight=1.0)
