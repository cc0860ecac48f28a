from .neck_chain import NeckChain
from .simple_fpn import SimpleFPN

__all__ = ['NeckChain', 'SimpleFPN']
