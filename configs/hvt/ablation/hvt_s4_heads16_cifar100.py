# Table 6.
_base_ = '../../_base_/hvt_cifar100.py'

model = dict(backbone=dict(arch='s-4-heads16'), head=dict(in_channels=1024))
