"Two processes train as one does on the doubled batch"
import json, os, subprocess, sys
from pathlib import Path
import pytest

pytest.importorskip('accelerate', reason='needs the extra dist')
root = Path(__file__).parents[1]
script = str(root/'examples'/'data_parallel.py')
env = {**os.environ, 'OMP_NUM_THREADS':'1', 'ACCELERATE_USE_CPU':'true', 'CUDA_VISIBLE_DEVICES':'', 'PYTHONPATH':str(root)}

def start(*args): return subprocess.Popen([sys.executable, *args], env=env, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

def result(process):
    "What the first process prints at the end"
    out,err = process.communicate()
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.strip().splitlines()[-1])

def test_two_processes_are_one():
    "Losses of every step, validation losses and accuracy of a classifier and a language model, to 1e-5; of the two, without logits"
    both = start('-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2', script, '--processes', '2', '--chunked'), start(script)
    two,one = map(result, both)
    assert (two.pop('processes'), one.pop('processes')) == (2,1) and two.keys() == one.keys() == {'classifier','language model'}
    for k in one:
        assert len(set(one[k]['losses'])) > 8
        assert two[k]['losses'] == pytest.approx(one[k]['losses'], abs=1e-5)
        for a,b in zip(two[k]['rows'], one[k]['rows'], strict=True): assert a == pytest.approx(b, abs=1e-5)
