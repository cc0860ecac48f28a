# DeiT-2x (appendix C): the schedule restarts from the trained DeiT-S.
_base_ = 'deit_s_imagenet.py'

load_from = 'published:deit-small'
