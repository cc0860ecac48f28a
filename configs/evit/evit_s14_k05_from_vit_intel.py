# What was distilled without thinning its tokens, thinned in fine-tuning.
_base_ = 'evit_s14_k05_intel.py'

model = dict(
    backbone=dict(
        init_cfg=dict(checkpoint='work_dirs/distill_vit_s14_coco/epoch_20.pth')
    )
)
