# Linear probing: the trunk stays as it was distilled.
_base_ = 'vit_s14_intel.py'

model = dict(backbone=dict(frozen_stages=12))
