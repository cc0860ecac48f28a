# A plain ViT of 1.6 million parameters on pictures of 128 x 128 in 256 tokens.
study_vit = dict(
    type='ThinViT',
    arch=dict(
        embed_dims=128,
        num_layers=8,
        num_heads=4,
        feedforward_channels=512,
        patch_size=8,
    ),
    img_size=128,
)
