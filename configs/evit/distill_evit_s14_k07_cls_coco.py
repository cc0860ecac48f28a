# The class token alone.
_base_ = 'distill_evit_s14_k07_coco.py'

model = dict(patch_weight=0.0)
