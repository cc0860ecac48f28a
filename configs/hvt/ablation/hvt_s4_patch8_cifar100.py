# Table 8.
_base_ = '../../_base_/hvt_cifar100.py'

model = dict(backbone=dict(arch='s-4-patch8'))
