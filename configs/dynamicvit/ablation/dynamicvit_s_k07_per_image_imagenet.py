# Every image keeps its share, rather than the batch.
_base_ = '../dynamicvit_s_k07_imagenet.py'

model = dict(ratio_per_image=True)
