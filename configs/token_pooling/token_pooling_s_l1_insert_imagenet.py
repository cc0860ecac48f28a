# Appendix E: no training at all. Test it with the checkpoint of DeiT-S:
#   python tools/test.py THIS_FILE published:deit-small
_base_ = 'token_pooling_s_l1_imagenet.py'
