# One pooling, after the first block: half the tokens from there on. Maps are
# interpolated from the pooled sequence.
hvt_s1 = dict(type='HVT', arch='s-1', drop_path_rate=0.1)
