"Set-up shared by all tests"
import os
os.environ.setdefault('MPLBACKEND', 'Agg')

import pytest, torch
from fastai.torch_core import set_seed
from fastprogress import fastprogress
from hypothesis import settings

fastprogress.NO_BAR = True
torch.set_num_threads(1) # the tensors are tiny: more threads only spin
settings.register_profile('fastai_txf', deadline=None, derandomize='CI' in os.environ)
settings.load_profile('fastai_txf')

def pytest_collection_modifyitems(items):
    "Skip tests marked `cuda` where there is no such device"
    if torch.cuda.is_available(): return
    skip = pytest.mark.skip(reason='needs a CUDA device')
    for o in items:
        if o.get_closest_marker('cuda'): o.add_marker(skip)

def pytest_fixture_setup(fixturedef):
    "What several tests share is the same whichever of them comes first"
    if fixturedef.scope != 'function': set_seed(42)

@pytest.fixture(autouse=True)
def seed():
    "Every test starts from the same random state"
    set_seed(42)
