"Two processes train as one does on the doubled batch, each with all of the weights or with half of them"
import sys; sys.modules.setdefault('torchvision', None)
import json, os, subprocess, torch
from pathlib import Path
import pytest
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.share.gguf import to_gguf
from fastai_txf.share.publish import publish
from fastai_txf.share.to_hf import to_hf
from fastai_txf.share.to_onnx import to_onnx
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.tokens import BPETokenizer
from fixtures import SMALL, texts_df

pytest.importorskip('accelerate', reason='needs the extra dist')
root = Path(__file__).parents[1]
script = str(root/'examples'/'data_parallel.py')
env = {**os.environ, 'OMP_NUM_THREADS':'1', 'ACCELERATE_USE_CPU':'true', 'CUDA_VISIBLE_DEVICES':'', 'PYTHONPATH':os.pathsep.join([str(root), str(root/'tests')])}

def start(*args): return subprocess.Popen([sys.executable, *args], env=env, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

def two(*args): return start('-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2', *args)

def result(process):
    "What the first process prints at the end"
    out,err = process.communicate()
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.strip().splitlines()[-1])

def same_losses(two, one):
    "Every step's and epoch's, to 1e-5"
    assert (two.pop('processes'), one['processes']) == (2,1) and two.keys() == one.keys() - {'processes'} == {'classifier','language model'}
    for k in two:
        assert len(set(one[k]['losses'])) > 8
        assert two[k]['losses'] == pytest.approx(one[k]['losses'], abs=1e-5)
        for a,b in zip(two[k]['rows'], one[k]['rows'], strict=True): assert a == pytest.approx(b, abs=1e-5)

@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    "Losses of one process, of two, and of two that share the weights, and the folder of the weights of one and of the sharing two"
    out = tmp_path_factory.mktemp('weights')
    for o in ('one','sharded'): (out/o).mkdir()
    ps = [start(script, '--save', str(out/'one')), two(script, '--processes', '2', '--chunked'),
          two(script, '--processes', '2', '--chunked', '--sharded', '--save', str(out/'sharded'))]
    return *map(result, ps), out

def test_two_processes_are_one(runs):
    "Losses of every step, validation losses and accuracy of a classifier and a language model, to 1e-5; of the two, without logits"
    same_losses(runs[1], runs[0])

def test_only_the_first_writes(tmp_path, monkeypatch):
    "Another process of a script writes nothing and gets the path, also where the first has written already"
    for name in ('transformers','gguf','onnx','onnxscript','onnxruntime'): pytest.importorskip(name)
    dls = LMDataLoaders.from_texts([*texts_df(20).text], tok_tfm=BPETokenizer(300), seq_len=16, bs=2)
    learn = transformer_lm_learner(dls, 'llama', **{**SMALL, 'path':tmp_path})
    monkeypatch.setenv('RANK', '1')
    for there in (False,True):
        paths = [tmp_path/str(i) for i in range(4)]
        if there: [p.mkdir() for p in paths]
        to_hf(learn, paths[3])
        assert [learn.publish(paths[0]), to_onnx(learn, paths[1]), to_gguf(learn, paths[2])] == paths[:3]
        assert not [o for o in tmp_path.rglob('*') if o not in paths]

def test_shared_weights(runs):
    "The same where each process holds half of the weights; and the weights after it, in both, to 1e-5"
    one,_,sharded,out = runs
    same_losses(sharded, one)
    for k in sharded:
        assert one[k]['share'] == 1 and 0.45 < sharded[k]['share'] < 0.55
        want = torch.load(out/'one'/f'{k}_0.pth')
        for r in (0,1):
            got = torch.load(out/'sharded'/f'{k}_{r}.pth')
            assert got.keys() == want.keys()
            for n in want: torch.testing.assert_close(got[n], want[n], atol=1e-5, rtol=0)

def test_sharded_learner(tmp_path):
    "Optimizers, frozen groups, callbacks, files, broken-off fits, refusals: the cases of `sharded.py`"
    assert result(two(str(root/'tests'/'sharded.py'), str(tmp_path))) == ['as_data_parallel','files','best','broken_off','refused','launched']
