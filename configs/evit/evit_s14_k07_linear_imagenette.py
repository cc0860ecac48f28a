# Linear probing: the trunk stays as it was distilled.
_base_ = 'evit_s14_k07_imagenette.py'

model = dict(backbone=dict(frozen_stages=12))
