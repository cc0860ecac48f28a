# Appendix E: no training at all. Test it with the checkpoint of DeiT-S:
#   python tools/test.py THIS_FILE checkpoints/deit_s.pth
_base_ = 'token_pooling_s_l1_imagenet.py'
