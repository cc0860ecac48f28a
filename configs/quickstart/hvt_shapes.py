# HVT with two stages: 64 tokens, 31 after the first block, 15 after the
# fourth.
_base_ = '../_base_/classifier_shapes.py'

model = dict(backbone=dict(type='HVT', num_stages=2))
optim_wrapper = dict(optimizer=dict(lr=5e-4, weight_decay=0.025))
