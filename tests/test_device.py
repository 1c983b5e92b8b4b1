"What a device other than the CPU asks for: the scenarios of pretend/scenarios.py, on a device that poses as CUDA"
import importlib.util, json, os, shutil, subprocess, sys, sysconfig
from pathlib import Path
import pytest, torch

pytestmark = pytest.mark.slow
here = Path(__file__).parent
folder = here/'pretend'

def missing():
    "Why the pretend device cannot be built here, or ''"
    if not torch.__version__.startswith('2.13.'): return f'it is made for torch 2.13, here is {torch.__version__}'
    if torch.version.cuda or torch.version.hip: return 'it takes the place of CUDA in a build of torch without it'
    tools = shutil.which(os.environ.get('CXX', 'c++')) and shutil.which('ninja')
    if not tools: return 'it needs a C++ compiler and ninja'
    return '' if Path(sysconfig.get_path('include'), 'Python.h').exists() else 'it needs the headers of Python'

def run(code, *args):
    "The last line that Python prints, in a process of its own: the device belongs to the whole of one"
    env = {**os.environ, 'PYTHONPATH':os.pathsep.join(map(str, (here.parent, here, folder))), 'MPLBACKEND':'Agg'}
    res = subprocess.run([sys.executable, *code, *args], env=env, capture_output=True, text=True, timeout=600)
    assert res.returncode == 0, res.stderr[-3000:]
    return json.loads(res.stdout.strip().splitlines()[-1])

@pytest.fixture(scope='module')
def device():
    if why := missing(): pytest.skip(why)
    run(['-c', 'import pretend; pretend.cuda(); print(1)'])

def test_strict(device):
    "The pretend device refuses what CUDA refuses, and takes what it takes"
    code = """if True:
        import json, pretend, torch
        pretend.cuda()
        a,b,number,i = torch.ones(3, device='cuda'), torch.ones(3), torch.tensor(2.), torch.tensor([0])
        def refused(f):
            try: f()
            except (RuntimeError,TypeError): return True
            return False
        mine = dict(device='cuda', generator=torch.Generator())
        wrong = lambda: a+b, lambda: b.add_(a), lambda: torch.cat([a,b]), lambda: a.gather(0, i), lambda: b[a>0], \
            lambda: a.numpy(), lambda: torch.rand(3, **mine), lambda: torch.where(a>0, a, b)
        right = lambda: a+number, lambda: a[i], lambda: a.copy_(b), lambda: a.cpu()+b, lambda: torch.rand_like(a)
        print(json.dumps([list(map(refused, wrong)), list(map(refused, right))]))
        """
    wrong,right = run(['-c', code])
    assert all(wrong) and not any(right), (wrong, right)

@pytest.mark.parametrize('group', ['classifier','language model','gaps and pairs','files'])
def test_as_on_the_cpu(group, device, tmp_path):
    "Nothing lies on the wrong device, and results are the CPU's up to rounding"
    res = run([str(folder/'scenarios.py')], group, str(tmp_path))
    wrong = [f'{k}: {v}' for k,v in res.items() if v]
    assert len(res) > 3 and not wrong, '\n'.join(wrong)
