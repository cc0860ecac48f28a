# Table 6.
_base_ = '../../_base_/hvt_cifar100.py'

model = dict(backbone=dict(arch='s-4-heads12'), head=dict(in_channels=768))
