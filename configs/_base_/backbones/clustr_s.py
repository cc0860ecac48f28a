# Drop path as in tables A2 to A4.
clustr_s = dict(type='ClusTR', arch='small', drop_path_rate=0.1)
