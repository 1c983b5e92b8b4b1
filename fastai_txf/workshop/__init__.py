"Behind the exercises of the workshop: `from fastai_txf.workshop import *` gives their checks and `earlier`."
from . import answers, attention, blocks, language, models, pages, steps
from .answers import *
from .attention import *
from .blocks import *
from .language import *
from .models import *
from .steps import *
from .pages import *

__all__ = [name for room in (answers, attention, blocks, language, models, steps, pages) for name in room.__all__]
