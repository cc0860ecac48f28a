# The same numbers of tokens, kept by other rules.
_base_ = 'token_pooling_s_l3_imagenet.py'

model = dict(backbone=dict(method='importance'))
