# As many tokens as EViT and DynamicViT keep by 0.7 in the fourth, seventh and
# tenth block, of the 196 patches of a 224 x 224 image and in proportion of
# others; the sparsity levels of the paper leave too few for a map.
token_pooling_s_k07 = dict(
    type='TokenPoolingDeiT',
    arch='deit-small',
    keep=[196] * 3 + [137] * 3 + [96] * 3 + [67] * 3,
    drop_path_rate=0.1,
)
