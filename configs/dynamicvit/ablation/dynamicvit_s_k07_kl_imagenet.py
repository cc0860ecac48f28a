# The tokens' divergence from the teacher's in place of the squared error.
_base_ = '../dynamicvit_s_k07_imagenet.py'

model = dict(token_loss='kl')
