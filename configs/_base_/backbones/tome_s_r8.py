# 8 of the 196 patches of a 224 x 224 image are merged by each block, and in
# proportion of others: half of the tokens are left, and maps are still full.
tome_s_r8 = dict(type='ToMe', arch='deit-small', merge=8, drop_path_rate=0.1)
