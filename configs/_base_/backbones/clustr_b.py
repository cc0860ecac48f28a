# Drop path as in tables A2 to A4.
clustr_b = dict(type='ClusTR', arch='base', drop_path_rate=0.3)
