# 30 epochs for a plain ViT that starts from a trained one; the rate ends at a
# tenth of what it was.
_base_ = 'classifier_vit_imagenet.py'

optim_wrapper = dict(optimizer=dict(lr=2e-5))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        T_max=30,
        eta_min_ratio=0.1,
        by_epoch=True,
        begin=0,
        end=30,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=30)
