# Appendix E: the same, where attention counts a token as often as it has
# patches.
_base_ = 'token_pooling_s_l1_insert_imagenet.py'

model = dict(backbone=dict(carry=True))
