"""Every public name: `from fastai_txf.all import *`, after `from fastai.text.all import *`.

Of fastai's names only `SelfAttention` (an image layer there) is replaced."""
from .attention import *
from .positions import *
from .layers import *
from .models import *
from .interop import *
from .hf import *
from .data import *
from .tokens import *
from .pairs import *
from .stream import *
from .generate import *
from .train import *
from .scale import *
from .resume import *
from .learner import *
from .seq2seq import *
from .mlm import *
from .interpret import *
from .explain import *
from .steps import *
from .recipes import *
from .selftrain import *
