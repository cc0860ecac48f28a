# The class token alone.
_base_ = 'distill_vit_s14_coco.py'

model = dict(patch_weight=0.0)
