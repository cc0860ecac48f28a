# Linear probing of what distill_evit_shapes.py distilled.
_base_ = 'evit_from_distilled_shapes.py'

model = dict(backbone=dict(frozen_stages=6))
optim_wrapper = dict(optimizer=dict(lr=1e-3))
