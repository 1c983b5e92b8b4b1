"Training through `torch.compile`: the losses, gradients and weights of plain training, and a plain model everywhere else"
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
import os, pickle, pytest, subprocess, sys, torch, torch.nn as nn, warnings
from fastai.text.all import load_learner, set_seed
from torch._dynamo.utils import counters
from fastai_txf.base import kept
from fastai_txf.base.compat import COMPILED
from fastai_txf.model.config import PRESETS
from fastai_txf.train.optim import adamw
from fastai_txf.train import compile as scale
from fastai_txf.model.attention import record_attention
from fastai_txf.generate.decode import generate
from fastai_txf.model.layers import TransformerBlock
from fastai_txf.model.positions import NoPositions
from fastai_txf.learn.mlm import transformer_mlm_learner
from fastai_txf.model.models import TransformerLM
from fastai_txf.train.losses import ChunkedLoss
from fastai_txf.train.compile import compile_for_training
from fixtures import SMALL, df, dls, dls_lm, make, quiet, weights
from test_scale import fitted, pairs_learner, start

NO_DROP = dict(p=0., emb_p=0.)
def LM(**kw): return TransformerLM(**{**SMALL, 'vocab_sz':30, **kw})

@pytest.fixture
def traced(monkeypatch):
    "Traces instead of compiling, which takes a moment, and starts without any code"
    torch._dynamo.reset()
    monkeypatch.setitem(scale._compile_options, 'backend', 'aot_eager')
    monkeypatch.delitem(scale._compile_options, 'options')
    yield
    torch._dynamo.reset()

def n_graphs(): return counters['stats']['unique_graphs']

def batch(bs, sl): return torch.randint(2, 30, (bs,sl))

def grads(model, *args):
    "Output and gradients of a step"
    model.zero_grad()
    y = model(*args)
    y.sin().sum().backward()
    return [y.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters())]

def close(a, b, tol=1e-5):
    for o,t in zip(a, b, strict=True): assert (o-t).abs().max() < tol*max(1, t.abs().max())

def make_kind(kind, make, dls, path, **kw):
    set_seed(0)
    if kind == 'seq2seq': return pairs_learner(path, **kw)
    if kind == 'mlm': return quiet(transformer_mlm_learner(dls, path=path, **SMALL, **kw))
    if kind == 'lm': kw.update(opt_func=adamw, qk_norm=True) # Muon makes much of what rounding leaves
    return make(kind, d_model=12, **kw) # a width that is no text's length: sizes that are equal at first count as one

@pytest.mark.parametrize('kind', ['clf','lm','seq2seq','mlm'])
def test_same_training(kind, make, dls, tmp_path, request):
    "Losses, validation and weights of each factory's learner, dropout included, on batches of all lengths, whose code (machine code for one of them) is made once; then files, copies and prediction as ever"
    if kind != 'lm': request.getfixturevalue('traced')
    res = []
    for compile in (False,True):
        learn,graphs = make_kind(kind, make, dls, tmp_path, compile=compile), n_graphs()
        start(learn)
        learn.fit(2, 1e-2)
        res.append([torch.stack(learn.recorder.losses), torch.tensor([[o or 0. for o in r] for r in learn.recorder.values]), *weights(learn).values()])
        assert n_graphs()-graphs <= (2 if kind == 'seq2seq' else 1)*compile
    close(*res, tol=1e-4)
    learn.export('learn.pkl')
    loaded,graphs = load_learner(tmp_path/'learn.pkl'), n_graphs()
    item,kw = 'a ___ film' if kind == 'mlm' else 'a warm film', dict(seed=0) if kind == 'lm' else {}
    assert str(loaded.predict(item, **kw)) == str(learn.predict(item, **kw)) and list(loaded.model.state_dict()) == list(learn.model.state_dict())
    learn.save('here'); learn.load('here')
    assert n_graphs() == graphs and not any(b._compiled_call_impl for b in loaded.model.encoder.blocks)
    assert all(b._compiled_call_impl for b in learn.model.encoder.blocks)

def test_few_graphs(traced):
    "One graph for all numbers of texts and tokens, one more for a single text or token; frozen and freed weights"
    model,plain = (f(LM(**NO_DROP)) for f in (compile_for_training, deepcopy))
    model.load_state_dict(plain.state_dict())
    def made(sizes):
        before = n_graphs()
        for bs,sl in sizes:
            x = batch(bs, sl)
            close(grads(model, x), grads(plain, x))
        return n_graphs()-before
    assert made([(4,11), (3,7), (9,40), (2,5), (16,2)]) == 1
    assert made([(1,9), (1,30), (4,12)]) == 1
    for m in (model,plain): m.encoder.emb.requires_grad_(False); m.encoder.blocks[0].requires_grad_(False)
    assert made([(4,11), (3,7), (9,40)]) == 2                             # frozen blocks, and the first one that is not
    for m in (model,plain): m.requires_grad_(True)
    assert made([(4,11), (3,7), (1,8)]) == 0

FIELDS = [*(dict(config=k) for k in PRESETS), dict(norm='rms'), dict(qk_norm=True)]

@pytest.mark.parametrize('fields', FIELDS, ids=str)
def test_each_preset(traced, monkeypatch, fields):
    "One graph for all sizes of a block of each preset, with the gradients of plain training, which keeps less here"
    for k in ('_least','_fewest'): monkeypatch.setattr(kept, k, 1000)
    plain = LM(**fields, **NO_DROP, attn_p=0.)
    model,graphs = compile_for_training(deepcopy(plain)), n_graphs()
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='.*could not be compiled')
        for x in (batch(2, 5), batch(9, 30)): close(grads(model, x), grads(plain, x))
    assert n_graphs() == graphs+1

@pytest.mark.parametrize('fields', FIELDS, ids=str)
def test_compiled_by_the_user(traced, fields):
    "The whole model of each preset in one graph, outside of training, and in a strict export"
    model,x = LM(**fields, n_layers=1).eval(), batch(2, 8)
    with torch.no_grad():
        want = model(x)
        close(torch.compile(model, backend='eager', fullgraph=True)(x), want)
        close(torch.export.export(model, (x,), strict=True).module()(x), want)

def test_plain_elsewhere(traced):
    "In evaluation, under hooks, inside of another `torch.compile` and in copies, nothing of it runs"
    model = compile_for_training(LM(n_layers=1))
    plain,graphs = deepcopy(model).eval(), n_graphs()
    x = batch(2, 9)
    model.eval()
    close(grads(model, x), grads(plain, x), tol=1e-7)                       # gradients, as attributions take them
    assert torch.equal(generate(model, x, 12, seed=0), generate(plain, x, 12, seed=0))
    model.train()
    with torch.no_grad(): model(x)
    with record_attention(model) as seen: model(x).sum().backward()
    assert [len(v) for v in seen.values()] == [1]
    calls = []
    handle = model.encoder.blocks[0].ff.fn.up.register_full_backward_hook(lambda *args: calls.append(1))
    model(x).sum().backward()
    handle.remove()
    assert calls == [1] and n_graphs() == graphs
    assert pickle.loads(pickle.dumps(model)).encoder.blocks[0]._compiled_call_impl is None
    assert torch.compile(model, backend='eager')(x).shape == (2,9,30)
    graphs = n_graphs()
    model(x)
    assert n_graphs() == graphs+1                                           # and now it does

WITHOUT = """
import warnings, torch
from copy import deepcopy
from fastai_txf.model.models import TransformerLM
from fastai_txf.train.compile import compile_for_training

plain = TransformerLM(vocab_sz=30, d_model=12, n_heads=2, n_layers=2, p=0., emb_p=0.)
model,x,said = compile_for_training(deepcopy(plain)), torch.randint(2, 30, (3,7)), []
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter('always')
    for m in (plain,model):
        for _ in range(2): m(x).sin().sum().backward()
said = [str(w.message) for w in seen if 'could not be compiled' in str(w.message)]
assert len(said) == 1 and 'C++ compiler such as g++' in said[0], said
assert all(torch.equal(p.grad, q.grad) for p,q in zip(plain.parameters(), model.parameters()))
"""

def test_no_compiler(tmp_path):
    "Without a C++ compiler a warning says what to do, once, and training goes on, equal to plain training; in a process of its own, as torch remembers that there is none"
    env = {**os.environ, 'CXX':'/nonexistent', 'TORCHINDUCTOR_CACHE_DIR':str(tmp_path), 'PYTHONPATH':str(Path(__file__).parents[1])}
    res = subprocess.run([sys.executable, '-c', WITHOUT], env=env, capture_output=True, text=True)
    assert res.returncode == 0 and 'compiled in' not in res.stdout, res.stderr[-3000:]

class Prints(TransformerBlock):
    "A block that cannot be compiled"
    def forward(self, x, mask=None, pos=None, **kwargs):
        print(end='')
        return super().forward(x, mask, pos, **kwargs)

def test_not_compilable(traced, monkeypatch):
    "A block that does more than compute, and too many graphs: the same gradients, with a warning; errors of the block itself are its own"
    monkeypatch.setitem(scale._compile_options, 'recompile_limit', 1)
    for kw,sizes in ((dict(block=Prints),[(2,9)]), (dict(),[(2,9),(1,9),(1,8)])):
        model = compile_for_training(LM(**kw, **NO_DROP))
        plain = deepcopy(model)
        with pytest.warns(UserWarning, match='(TransformerBlock|Prints) could not be compiled') as seen:
            for bs,sl in sizes:
                x = batch(bs, sl)
                close(grads(model, x), grads(plain, x))
        assert sum('goes on without' in str(w.message) for w in seen) == 1
    model = compile_for_training(LM(), [LM().encoder.norm])
    with pytest.raises(TypeError, match='Learner is no module'): compile_for_training(type('Learner', (), {})())
    with pytest.raises(TypeError, match='str is no module'): compile_for_training(model, ['encoder'])
    model = compile_for_training(LM(positions='learned', max_len=4))
    with pytest.raises(ValueError, match='learned positions end at max_len=4'): model(batch(2, 9))
    block = compile_for_training(TransformerBlock(16, 2, cross=True))
    with pytest.raises(ValueError, match='got no context'): block(torch.randn(2, 3, 16))

def test_any_model(traced):
    "What has none of our blocks is compiled as a whole, or in the parts that are named"
    model,x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), torch.randn(5, 4)
    want,graphs = grads(model, x), n_graphs()
    close(grads(compile_for_training(deepcopy(model)), x), want)
    assert n_graphs() == graphs+1
    two = deepcopy(model)
    close(grads(compile_for_training(two, [two[0],two[2]]), x), want)
    assert n_graphs() == graphs+3
    for parts,n in ((lambda m: (m[i] for i in (0,2)), 2), (lambda m: m[0], 1)):
        model = deepcopy(model)
        compile_for_training(model, parts(model))
        assert sum(getattr(m, COMPILED) is not None for m in model.modules()) == n

@pytest.mark.parametrize('low', [False,True])
def test_among_others(make, traced, low):
    "With loss in chunks, blocks computed twice, a frozen part and rates to find, and in bf16 (within its rounding): as without compiling"
    res = []
    for compile in (False,True):
        set_seed(0)
        learn = make('lm', compile=compile, checkpoint=True, opt_func=adamw, **NO_DROP)
        if low: learn.to_bf16()
        start(learn)
        learn.freeze_to(-2)
        learn.lr_find(num_it=3, show_plot=False)
        learn.unfreeze()
        res.append(fitted(learn, ChunkedLoss(chunk=20), n=1)[:1 if low else None])
    close(*res, tol=0.01 if low else 1e-4)

def test_dropout(traced):
    "A seed draws what it draws without compiling, in a block that is computed twice, too"
    model,res,x = LM(p=0.3, attn_p=0.2), [], batch(4, 10)
    for compile in (False,True):
        for checkpoint in (False,True):
            new = compile_for_training(deepcopy(model)) if compile else deepcopy(model)
            new.encoder.config = replace(model.encoder.config, checkpoint=checkpoint)
            torch.manual_seed(1)
            res.append(grads(new, x))
    for o in res[1:]: close(res[0], o)
    assert (grads(new, x)[0]-res[0][0]).abs().max() > 1e-2

def load(learn, path):
    "Another learner's weights from a file, positions of another base, another scale of embeddings"
    other = make_again(learn, path)
    other.save('other')
    learn.load('other')

def make_again(learn, path):
    set_seed(3)
    return quiet(type(learn)(learn.dls, type(learn.model)(learn.model.config), path=path, loss_func=learn.loss_func))

def each_block(f): return lambda learn, path: [f(b) for b in learn.model.encoder.blocks]

def untie(learn): learn.model.head = nn.Linear(16, learn.model.head.out_features, bias=False)

def scale_emb(learn, path):
    enc = learn.model.encoder
    enc.config = replace(enc.config, scale_emb=not enc.config.scale_emb)

CHANGES = dict(load=load, encoder=lambda learn, path: learn.load_encoder(make_again(learn, path).save_encoder('enc')),
               base=each_block(lambda b: setattr(b.attn.fn.positions, 'base', 7.)),
               act=each_block(lambda b: setattr(b.ff.fn, 'act', nn.Tanh())),
               eps=each_block(lambda b: setattr(b.ff.norm, 'eps', 1.)), scale_emb=scale_emb,
               freeze=lambda learn, path: learn.freeze_to(-2), bf16=lambda learn, path: learn.model.to(torch.bfloat16),
               copy=lambda learn, path: setattr(learn, 'model', compile_for_training(deepcopy(learn.model))),
               untie=lambda learn, path: setattr(learn.model, 'head', nn.Linear(16, learn.model.head.out_features)),
               tie=lambda learn, path: (untie(learn), setattr(learn.model.head, 'weight', learn.model.encoder.emb.weight)),
               state=lambda learn, path: learn.model.load_state_dict({k:1.1*v for k,v in learn.model.state_dict().items()}),
               unfreeze=lambda learn, path: (learn.freeze(), grads(learn.model.train(), batch(2, 5)), learn.unfreeze()),
               trained=lambda learn, path: learn.fit(1, 1e-2), double=lambda learn, path: learn.model.double(),
               weight=each_block(lambda b: setattr(b.ff.fn.up, 'weight', nn.Parameter(torch.ones_like(b.ff.fn.up.weight)))),
               part=each_block(lambda b: setattr(b.ff.fn, 'up', nn.Sequential(b.ff.fn.up, nn.Tanh()))),
               norm=each_block(lambda b: setattr(b.attn, 'norm', nn.RMSNorm(16))),
               positions=each_block(lambda b: setattr(b.attn.fn, 'positions', NoPositions())),
               block=lambda learn, path: learn.model.encoder.blocks.insert(0, learn.model.encoder.blocks[0]),
               dropout=each_block(lambda b: [setattr(o, 'p', 0.) for o in b.modules() if isinstance(o, nn.Dropout)]),
               hook=each_block(lambda b: b.register_forward_hook(lambda m, args, out: out.roll(1, -1))),
               part_hook=each_block(lambda b: b.ff.fn.up.register_forward_hook(lambda m, args, out: 2*out)))

def compiled_is_plain(learn, change, path):
    "After `change`, a compiled step is the plain one of the changed model; and the change tells"
    x = batch(3, 9)
    learn.model.train()
    before = grads(learn.model, x)[0]
    change(learn, path)
    model = learn.model.train()
    dtype = model.encoder.emb.weight.dtype
    got = grads(model, x)
    close(got, grads(deepcopy(model), x), tol=0.02 if dtype == torch.bfloat16 else 1e-5)
    return (got[0]-before).abs().max()

_the_same = 'freeze', 'unfreeze', 'copy', 'tie', 'dropout' # what a step computes stays

@pytest.mark.parametrize('change', CHANGES)
def test_traced_after_a_change(make, traced, monkeypatch, change, tmp_path):
    "Each public way to change a model, and those by hand, in one block that is traced and not compiled"
    monkeypatch.setitem(scale._compile_options, 'backend', 'eager')
    set_seed(0)
    drop = dict(p=0.5, emb_p=0.) if change == 'dropout' else NO_DROP
    told = compiled_is_plain(make('lm', compile=True, n_layers=1, **drop), CHANGES[change], tmp_path)
    if change not in (*_the_same, 'bf16', 'double'): assert told > 1e-4

@pytest.mark.slow
@pytest.mark.parametrize('change', CHANGES.values(), ids=CHANGES)
def test_compiled_after_a_change(make, traced, change, tmp_path):
    "The same in two blocks, with gradients that are traced, too"
    set_seed(0)
    compiled_is_plain(make('lm', compile=True, **NO_DROP), change, tmp_path)
