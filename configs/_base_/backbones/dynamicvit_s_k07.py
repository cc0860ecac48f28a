# 0.7 of the patches stay from the fourth block on, 0.49 from the seventh and
# 0.34 from the tenth; those that leave keep the values that they left with.
dynamicvit_s_k07 = dict(
    type='DynamicViT', arch='deit-small', keep=0.7, drop_path_rate=0.1
)
