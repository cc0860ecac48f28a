# For configs that train DynamicViT's predictors. They learn faster than the
# rest; as batches are small, the ratio loss weighs more than the paper's 2.
predictors = dict(
    custom_keys={'predictor': dict(lr_mult=10.0, decay_mult=0.0)}
)
ratio_weight = 10.0
