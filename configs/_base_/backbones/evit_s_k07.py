# 0.7 of the tokens stay in the fourth, seventh and tenth block.
evit_s_k07 = dict(type='EViT', arch='deit-small', keep=0.7, drop_path_rate=0.1)
