# Supplement, section B: without a teacher.
_base_ = '../dynamicvit_s_k07_imagenet.py'

model = dict(kl_weight=0.0, token_weight=0.0)
