# As many clusters as an image's content asks for (the paper's future work):
# those that hold 90 % of the decision values.
_base_ = 'clustr_t_100e_imagenet.py'

model = dict(backbone=dict(share=0.9))
