# A ClusTR of 1.6 million parameters, for generated pictures.
small_clustr = dict(
    type='ClusTR',
    arch=dict(
        depths=(1, 1, 3, 1),
        dims=(32, 64, 128, 192),
        num_heads=(1, 2, 4, 6),
        ffn_ratios=(4, 4, 4, 4),
    ),
)
