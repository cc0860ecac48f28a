# Table 5.
_base_ = '../../_base_/hvt_cifar100.py'

model = dict(backbone=dict(arch='s-4-depth24'))
