# Drop path as in tables A2 to A4.
clustr_t = dict(type='ClusTR', arch='tiny', drop_path_rate=0.1)
