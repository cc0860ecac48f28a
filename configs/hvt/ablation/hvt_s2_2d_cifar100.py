# Table 9.
_base_ = '../../_base_/hvt_cifar100.py'

model = dict(backbone=dict(arch='s-2-2d'))
