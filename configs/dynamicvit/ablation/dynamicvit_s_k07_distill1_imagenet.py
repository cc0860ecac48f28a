# Supplement, section B: stronger distillation.
_base_ = '../dynamicvit_s_k07_imagenet.py'

model = dict(kl_weight=1.0, token_weight=1.0)
