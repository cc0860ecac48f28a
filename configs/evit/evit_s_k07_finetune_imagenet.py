# Fine-tune DeiT-S at a constant keep rate.
#   python tools/convert_checkpoint.py FILE checkpoints/deit_s.pth --from deit
_base_ = '../_base_/finetune_vit_imagenet.py'

model = dict(
    backbone=dict(type='EViT', arch='deit-small', keep=0.7, drop_path_rate=0.1)
)
optim_wrapper = dict(optimizer=dict(weight_decay=1e-6))
load_from = 'checkpoints/deit_s.pth'
