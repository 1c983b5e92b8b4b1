"What has to hold for every model: drawn from shapes, modes, position schemes, norms, wirings and presets"
import copy, io, math, pickle, warnings
from dataclasses import replace
from itertools import product
import numpy as np, pytest, torch, torch.nn as nn, torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from fastai_txf.model.attention import PerHeadLinear
from fastai_txf.model.layers import FEED_FORWARDS, NORMS, WIRINGS
from fastai_txf.model.windows import POOLS
from fastai_txf.model.config import INITS, LONG, make_config, PRESETS, TransformerConfig
from fastai_txf.model.stack import TransformerDecoder, TransformerEncoder, TransformerStack
from fastai_txf.model.models import (
    classifier_splitter, lm_splitter, mlm_splitter, Seq2SeqTransformer, seq2seq_splitter,
    TransformerClassifier, TransformerLM, TransformerMLM)
from fastai_txf.generate.cache import KVCache
from fastai_txf.model.positions import LearnedPositions, NoPositions, POSITIONS
from fixtures import close

vocab_sz,pad,all_pools = 30, 1, [*POOLS,'max_logits']
few,some = settings(max_examples=3), settings(max_examples=12)

@st.composite
def configs(draw, **kwargs):
    "Configurations of small models; `kwargs` are fields to fix"
    n_heads = draw(st.sampled_from([2,4,6]))
    mode = draw(st.sampled_from(['standard','wide','narrow']))
    n_kv = st.sampled_from([None,1,2,n_heads]) if mode != 'narrow' else st.none()
    d_head = st.sampled_from([None,4,10]) if mode != 'narrow' else st.none()
    one_of = lambda table: draw(st.sampled_from([*table]))
    sizes = dict(vocab_sz=vocab_sz, d_model=n_heads*draw(st.sampled_from([2,4])), n_layers=draw(st.integers(1,3)), max_len=draw(st.integers(8,20)))
    heads = dict(n_heads=n_heads, mode=mode, n_kv_heads=draw(n_kv), d_head=draw(d_head))
    parts = {f:one_of(table) for f,table in dict(positions=POSITIONS, norm=NORMS, wiring=WIRINGS, ff=FEED_FORWARDS, bias=[None,False], scale_emb=[True,False], emb_norm=[True,False], qk_norm=[True,False], bigrams=[None,7,40*vocab_sz]).items()}
    return TransformerConfig(**{**sizes, **heads, **parts, 'pad_idx':pad, **kwargs})

def build(cls, config, seed=0):
    "A model in `eval` with all of its weights random, none small, so that whatever is passed on can be seen"
    torch.manual_seed(seed)
    model = cls(config).eval()
    for m in model.modules():
        if isinstance(m, nn.Embedding): nn.init.normal_(m.weight)
        elif isinstance(m, (nn.LayerNorm,nn.RMSNorm)): nn.init.uniform_(m.weight, 0.5, 1.5)
        elif isinstance(m, (nn.Linear,PerHeadLinear)): nn.init.normal_(m.weight, std=m.weight.shape[-1]**-0.5)
    return model

def text(sl): return torch.randint(2, vocab_sz, (sl,))

# Order and time

@some
@given(configs(), st.integers(2,8), st.data())
def test_causal(config, sl, data):
    "A language model's outputs do not depend on later tokens, and do on the present one"
    lm = build(TransformerLM, config)
    i = data.draw(st.integers(0, sl-1))
    a = text(sl)[None].repeat(2,1)
    a[1,i:] = (a[1,i:]-2+torch.randint(1, vocab_sz-2, (sl-i,)))%(vocab_sz-2) + 2
    out = lm(a)
    close(out[0,:i], out[1,:i])
    assert (out[0,i]-out[1,i]).abs().max() > 1e-3

@some
@given(configs(), st.integers(2,8))
def test_causal_gradient(config, sl):
    "Nor do their gradients reach later tokens"
    lm,seen,i = build(TransformerLM, config), [], sl//2
    lm.encoder.emb.register_forward_hook(lambda m, args, out: seen.append(out))
    g, = torch.autograd.grad(lm(text(sl)[None])[0,i-1].square().sum(), seen)
    assert g[0,i:].abs().max()==0 and g[0,:i].abs().max() > 0

@some
@given(configs(positions='none', bigrams=None), st.integers(2,8), st.randoms(use_true_random=False))
def test_equivariant(config, sl, random):
    "Without positions an encoder's outputs are shuffled as its inputs are"
    enc,x,perm = build(TransformerEncoder, config), text(sl)[None], random.sample(range(sl), sl)
    close(enc(x[:,perm]), enc(x)[:,perm])

@pytest.mark.parametrize('positions', [o for o in POSITIONS if o!='none'])
@some
@given(data=st.data(), sl=st.integers(4,8))
def test_not_equivariant(positions, data, sl):
    "With positions they are not. (Reversal would not do: to ALiBi a text read backwards is the same.)"
    enc,x = build(TransformerEncoder, data.draw(configs(positions=positions))), torch.arange(2, 2+sl)[None]
    assert (enc(x.roll(1, 1)) - enc(x).roll(1, 1)).abs().max() > 1e-3

# Padding and companions

def padded(t, front, back, inside=0):
    "`t` with padding in front, behind and after its first token"
    return torch.cat([torch.full((front,), pad), t[:1], torch.full((inside,), pad), t[1:], torch.full((back,), pad)])

@pytest.mark.parametrize('pool,long', [*product(all_pools, LONG)])
@few
@given(data=st.data())
def test_padding(pool, long, data):
    "A classifier's answer to a text is the same with padding anywhere and beside companions, one of them 3,000 tokens long"
    draw = lambda lo, hi: data.draw(st.integers(lo, hi))
    config = data.draw(configs(pool=pool, long=long, n_out=3))
    clf,t,n = build(TransformerClassifier, config), text(draw(1, 50)), draw(0, 80)
    alone = clf(t[None])
    for front,back,inside in ((n,0,0), (0,n,0), (n,draw(0,80),0), (draw(0,9),n,draw(0,9))): close(clf(padded(t, front, back, inside)[None]), alone)
    width,front = data.draw(st.sampled_from([(150,0),(150,72),(3000,720)]))
    batch = torch.stack([padded(t, front, width-front-len(t)), text(width), padded(text(7), width-7, 0)])
    close(clf(batch)[:1], alone)

@pytest.mark.parametrize('pool', all_pools)
def test_padding_of_pairs(pool):
    "Pairs of tokens, and norms of queries and keys, beside padding in front, behind and within"
    config = make_config('modern', bigrams=50, vocab_sz=vocab_sz, pad_idx=pad, d_model=16, n_heads=2, max_len=40, pool=pool, n_out=3)
    clf,t = build(TransformerClassifier, config), text(20)
    alone = clf(t[None])
    assert not torch.equal(alone, clf(t[[1,0,*range(2, 20)]][None]))
    for front,back,inside in ((9,0,0), (0,9,0), (5,70,3)): close(clf(padded(t, front, back, inside)[None]), alone)

@some
@given(configs(n_out=3), st.sampled_from(all_pools), st.integers(1,60))
def test_long(config, pool, sl):
    "What is read of a long text: one end, both ends, or all of it in windows that do not see each other"
    t,m = text(sl), config.max_len
    read = dict(head=t[:m], tail=t[-m:], **{'head+tail':torch.cat([t[:m//2], t[-(m-m//2):]]) if sl > m else t})
    for long,part in read.items(): close(*[build(TransformerClassifier, replace(config, pool=pool, long=long))(o[None]) for o in (t,part)])
    clf = build(TransformerClassifier, replace(config, pool=pool, long='window'))
    n = -(-sl//m)
    pieces = [clf.encoder(o[None]) for o in t.split(-(-sl//n))]
    assert len(pieces)==n
    close(clf.hidden(t[None])[0], torch.cat(pieces, 1))

@pytest.mark.parametrize('long', LONG)
def test_long_companion(long):
    "The same at the default size and initialisation, beside 3,000 tokens"
    clf = TransformerClassifier(vocab_sz=vocab_sz, long=long).eval()
    with torch.no_grad():
        for sl in (1,300,700):
            t = text(sl)
            close(clf(torch.stack([padded(t, 72*5, 3000-sl-72*5), text(3000)]))[:1], clf(t[None]))

@pytest.mark.parametrize('preset', PRESETS)
@pytest.mark.parametrize('pool', all_pools)
def test_only_padding(preset, pool):
    "A row of nothing but padding has a finite answer and finite gradients, and leaves its neighbour's alone"
    clf = TransformerClassifier(preset, vocab_sz=vocab_sz, d_model=16, n_heads=4, max_len=8, pool=pool).eval()
    t = text(11)
    out = clf(torch.stack([torch.full((15,), pad), padded(t, 0, 4)]))
    close(out[1:], clf(t[None]))
    for x in (out, clf(torch.full((2,3), pad))):
        assert x.isfinite().all()
        for g in torch.autograd.grad(x.square().sum(), clf.parameters(), allow_unused=True): assert g is None or g.isfinite().all()

@pytest.mark.parametrize('preset', PRESETS)
def test_lm_padding(preset):
    "Padding behind changes nothing for a language model; nothing but padding stays finite"
    lm,t = TransformerLM(preset, vocab_sz=vocab_sz, d_model=16, n_heads=4, max_len=20).eval(), text(6)
    close(lm(padded(t, 0, 9)[None])[:,:6], lm(t[None]))
    out = lm(torch.full((2,5), pad))
    out.square().sum().backward()
    assert out.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in lm.parameters())

# How the models are related, and what they promise

def test_family():
    "Encoder and decoder are children of the stack, models children of none but a module"
    assert TransformerEncoder.__bases__ == TransformerDecoder.__bases__ == (TransformerStack,)
    models = TransformerLM,TransformerMLM,TransformerClassifier,Seq2SeqTransformer
    assert not any(issubclass(a, b) for a,b in product(models, models) if a is not b)

def mixed(width=11):
    "Two texts, one with padding in front"
    return torch.stack([text(width), padded(text(width-4), 4, 0)])

inputs = {TransformerLM: lambda: (mixed(),), TransformerClassifier: lambda: (mixed(),), TransformerEncoder: lambda: (mixed(),),
          TransformerMLM: lambda: (mixed(), torch.rand(2,11) < 0.4), Seq2SeqTransformer: lambda: (mixed(), mixed(6))}

@pytest.mark.parametrize('tie', [True,False])
@pytest.mark.parametrize('cls', [TransformerLM,TransformerMLM,Seq2SeqTransformer])
@few
@given(data=st.data())
def test_hidden(cls, tie, data):
    "`model.hidden` takes what the model takes, and the head makes the model's output of it"
    model,xb = build(cls, data.draw(configs(tie=tie, max_len=20))), inputs[cls]()
    assert torch.equal(model(*xb), model.head(model.hidden(*xb)))
    if cls is not TransformerMLM: return
    some = xb[1] # fewer rows: the same vectors, but a product of another size, which rounds otherwise
    assert torch.equal(model.hidden(xb[0])[some], model.hidden(*xb))
    close(model(xb[0])[some], model(*xb))

@few
@given(configs(n_out=3), st.sampled_from(list(POOLS)))
def test_hidden_of_a_classifier(config, pool):
    "A classifier's are the vectors before pooling, and which are real"
    clf,x = build(TransformerClassifier, replace(config, pool=pool, long='window')), mixed()
    h,real = clf.hidden(x)
    assert h.shape[:2] == real.shape == (2,11) and real.sum(1).tolist() == (x != pad).sum(1).tolist()
    close(clf(x), clf.head(clf.pooler(POOLS[pool](h, real))))

exported = pytest.mark.parametrize('cls', list(inputs), ids=lambda o: o.__name__)

def answers_and(cls, change, **kw):
    "The outputs of a model and those of what `change(model, inputs)` makes of it"
    model,xs = build(cls, make_config(**{**small, **kw})), inputs[cls]()
    xs = tuple(o for o in xs if o.dtype != torch.bool)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return model(*xs), change(model, xs)(*xs)

@exported
@pytest.mark.parametrize('positions', POSITIONS)
def test_export(cls, positions):
    "`torch.export` of every model, texts within `max_len`"
    close(*answers_and(cls, lambda m, xs: torch.export.export(m, xs, strict=False).module(), positions=positions))

@exported
def test_export_of_any_size(cls):
    "An exported program reads batches of other sizes too"
    def change(m, xs):
        sizes = tuple({0:torch.export.Dim.AUTO, 1:torch.export.Dim.AUTO} for _ in xs)
        return torch.export.export(m, tuple(text(20).view(4, 5) for _ in xs), dynamic_shapes=sizes, strict=False).module()
    close(*answers_and(cls, change))

@exported
@pytest.mark.parametrize('n_kv_heads', [None,1])
def test_trace(cls, n_kv_heads):
    "`torch.jit.trace`, by which `TensorBoardCallback` draws a model"
    close(*answers_and(cls, lambda m, xs: torch.jit.trace(m, xs, check_trace=False), n_kv_heads=n_kv_heads))

@exported
def test_onnx(cls, tmp_path):
    "ONNX has an operator for all that the models do, with the same outputs"
    pytest.importorskip('onnxscript')
    runtime = pytest.importorskip('onnxruntime')
    def change(m, xs):
        torch.onnx.export(m, xs, tmp_path/'m.onnx', dynamo=True, verbose=False)
        session = runtime.InferenceSession(tmp_path/'m.onnx')
        names = [o.name for o in session.get_inputs()]
        return lambda *xs: torch.from_numpy(session.run(None, {n:x.numpy() for n,x in zip(names, xs, strict=True)})[0])
    close(*answers_and(cls, change))

# Training, saving, parameter groups

small = dict(vocab_sz=vocab_sz, d_model=32, n_heads=4, max_len=16, n_out=3)
@pytest.mark.parametrize('preset', [o for o in PRESETS if o != 'bloem'])
def test_classifiers_begin_without_an_opinion(preset):
    "Untrained, no class is far ahead for all texts alike, whatever the pooling"
    x,ahead = torch.randint(2, 500, (64,80)), []
    for seed in range(5):
        torch.manual_seed(seed)
        out = TransformerClassifier(preset, vocab_sz=500, n_out=3, d_model=128).eval()(x).mean(0)
        ahead.append((out-out.mean()).abs().max().item())
    assert sum(ahead)/len(ahead) < 1

each_model = pytest.mark.parametrize('preset,cls', [*product(PRESETS, (TransformerClassifier,TransformerLM))])

def batch(cls):
    "Token ids and targets, one for each text or each token"
    x = torch.randint(2, vocab_sz, (8,13))
    return (x, torch.randint(0, 3, (8,))) if cls is TransformerClassifier else (x[:,:-1], x[:,1:])

@each_model
def test_trains(preset, cls):
    "The first step lowers the loss, and a few lower it further"
    model,(x,y) = cls(preset, **small), batch(cls)
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    def loss(): return F.cross_entropy(model(x).flatten(0,-2), y.flatten())
    def evaluate():
        with torch.no_grad(): return model.eval() and loss().item()
    losses = [evaluate()]
    for _ in range(6):
        model.train()
        loss().backward()
        opt.step(); opt.zero_grad()
        losses.append(evaluate())
    assert all(map(math.isfinite, losses)) and losses[1] < losses[0] and losses[-1] < losses[1], losses

@each_model
def test_saves(preset, cls):
    "Weights loaded into a new model, and a pickled model, give the same answers"
    model,(x,_),file = cls(preset, **small).eval(), batch(cls), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = cls(model.config).eval()
    assert not torch.equal(other(x), model(x))
    other.load_state_dict(torch.load(file, weights_only=True))
    for o in (other, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(o(x), model(x)) and o.config==model.config

@each_model
@pytest.mark.parametrize('positions', POSITIONS)
def test_splitters(preset, cls, positions):
    "Every parameter is in one group, the blocks have one each, and the head is in the last"
    model = cls(preset, **{**small, 'positions':positions})
    groups = (classifier_splitter if cls is TransformerClassifier else lm_splitter)(model)
    ids = [[id(p) for p in g] for g in groups]
    assert sorted(sum(ids, [])) == sorted(id(p) for p in model.parameters()) and all(ids)
    assert id(model.head.weight) in ids[-1]
    for b in model.encoder.blocks: assert {id(p) for p in b.parameters()} in map(set, ids)

splitters = {TransformerMLM:mlm_splitter, Seq2SeqTransformer:seq2seq_splitter}

@pytest.mark.parametrize('tie', [True,False])
@pytest.mark.parametrize('share_emb', [True,False])
@pytest.mark.parametrize('cls', splitters)
def test_other_splitters(cls, share_emb, tie):
    "Likewise of masked models and encoder–decoders"
    model = cls(**small, tie=tie, share_emb=share_emb)
    ids = [[id(p) for p in g] for g in splitters[cls](model)]
    assert sorted(sum(ids, [])) == sorted(id(p) for p in model.parameters()) and all(ids)
    assert id(model.head.weight) in ids[-1]
    for b in model.encoder.blocks: assert {id(p) for p in b.parameters()} in map(set, ids)

# Names and errors

keys = dict(positions=POSITIONS, ff=FEED_FORWARDS, norm=NORMS, wiring=WIRINGS, init=INITS, pool=all_pools, long=LONG, mode=('standard','wide','narrow'))
by_name = [(f,k) for f,table in keys.items() for k in table]

@pytest.mark.parametrize('field,key', by_name)
def test_names(field, key):
    "Every name builds a model that answers"
    clf = TransformerClassifier(**{**small, field:key})
    assert clf(text(40)[None]).shape==(1,3)
    assert getattr(clf.config, field)==key

@few
@given(st.text('abcdefghij +-', max_size=8))
def test_unknown_names(s):
    "And no other does"
    for field in keys:
        if s in keys[field]: continue
        with pytest.raises(ValueError, match=field): TransformerEncoder(**{**small, field:s})

errors = dict(
    heads     =(ValueError, dict(d_model=30, n_heads=4), ['d_model=30','n_heads=4']),
    narrow    =(ValueError, dict(d_model=30, n_heads=4, mode='narrow'), ['d_model=30','n_heads=4']),
    kv_heads  =(ValueError, dict(n_kv_heads=3), ['n_heads=4','n_kv_heads=3']),
    rotary    =(ValueError, dict(d_head=5), ['d_head=5','even']),
    misspelt  =(TypeError,  dict(n_haeds=2), ["'n_haeds'","'n_heads'"]),
    unknown   =(TypeError,  dict(qwertz=2), ["'qwertz'",'d_model']),
    preset    =(ValueError, dict(config='gpt5'), ["'gpt5'",'gpt2']),
    layers    =(ValueError, dict(n_layers=0), ['n_layers=0','1']),
    vocabulary=(ValueError, dict(vocab_sz=None), ['vocab_sz']))

@pytest.mark.parametrize('error,kwargs,words', errors.values(), ids=errors)
def test_errors(error, kwargs, words):
    "An error names the value and the remedy"
    with pytest.raises(error) as e: TransformerClassifier(**{**small, **kwargs})
    assert all(o in str(e.value) for o in words), str(e.value)

@pytest.mark.parametrize('p', [0.05, 0.2, 0.5])
def test_words_that_are_left_out(p):
    "A part `p` of the vocabulary, another one for each text, all its occurrences, the first token never; two words are independent"
    torch.manual_seed(0)
    n,words = 20_000, 12
    model = TransformerClassifier(vocab_sz=40_000, n_out=2, d_model=8, n_heads=2, n_layers=1, pad_idx=1, word_p=p).train()
    ids = torch.tensor([2,3,9,10,11,12,500,501,9_999,20_000,30_000,39_999])
    kept = model._leave_out(torch.cat([torch.tensor([8]), ids, ids]).expand(n, -1))
    assert (kept[:,0] == 8).all()
    gone = kept[:,1:words+1] == 1
    assert gone.equal(kept[:,words+1:] == 1)                                      # all of a text's occurrences
    assert (gone.float().mean(0)-p).abs().max() < 5*(p*(1-p)/n)**0.5
    both = gone.float().T @ gone.float()/n
    off = ~torch.eye(words, dtype=torch.bool)
    assert (both[off]-p*p).abs().max() < 5*(p*p*(1-p*p)/n)**0.5
    assert (gone[1:] != gone[:-1]).any(1).float().mean() > 1-((1-p)**2+p*p)**words-0.05 # texts differ

@pytest.mark.parametrize('field', ['p','attn_p','ff_p','emb_p','head_p','token_p'])
@pytest.mark.parametrize('value', [-0.1,1.,1.5,math.nan])
def test_probabilities(field, value):
    "Dropouts are probabilities below 1"
    with pytest.raises(ValueError, match=f'{field}={value}'): make_config(**{field:value})

def test_learned_end():
    "Learned positions stop at `max_len`, with the remedy; the others go on"
    x = text(17)[None]
    with pytest.raises(ValueError, match='17 tokens.*max_len=16.*rotary'): TransformerLM(**small, positions='learned')(x)
    for o in POSITIONS:
        if o!='learned': assert TransformerLM(**small, positions=o)(x).shape==(1,17,vocab_sz)

@pytest.mark.parametrize('pos', [[*range(6,12)], [8], [[0,1,2],[6,7,8]]], ids=str)
def test_learned_end_of_values(pos):
    "The largest position counts, not how many there are; the last one is still there"
    learned,pos = LearnedPositions(4, 8), torch.tensor(pos)
    x = torch.zeros(2, pos.shape[-1], 4)
    with pytest.raises(ValueError, match=f'{pos.max()+1} tokens.*max_len=8'): learned.embed(x, pos)
    with pytest.raises(ValueError, match='max_len=8'): learned.check(pos, end=50)
    assert learned.embed(x, pos.clamp(max=7)).shape == x.shape
    with pytest.raises(IndexError): learned.embed(x, -pos)

def test_learned_end_in_a_cache():
    "Also where each call is short enough; a cache that has read more than there are positions, but padding, goes on"
    lm,x = TransformerLM(**{**small, 'max_len':8}, positions='learned').eval(), text(12)[None]
    cache = KVCache()
    lm(x[:,:6], cache)
    with pytest.raises(ValueError, match='12 tokens.*max_len=8'): lm(x[:,6:], cache)
    cache = KVCache(real=torch.tensor([[False]*5 + [True]*3]))
    lm(x[:,:8], cache)
    close(lm(x[:,8:9], cache), lm(x[:,5:9])[:,-1:])

class NoLook(torch.Tensor):
    "Positions on a device that would wait if it were asked"
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        assert func not in (torch.Tensor.max, torch.Tensor.item, torch.Tensor.__int__), func
        return super().__torch_function__(func, types, args, kwargs)

def test_learned_does_not_wait():
    "The values are looked at only where the shape and the tokens read leave it open"
    pos = torch.arange(8).as_subclass(NoLook)
    LearnedPositions(4, 8).embed(torch.zeros(1, 8, 4), pos)
    LearnedPositions(4, 8).check(pos, end=8)
    NoPositions().check(pos, end=10**9)

def test_own_positions(monkeypatch):
    "A scheme of one's own in `POSITIONS` need not know of a base"
    monkeypatch.setitem(POSITIONS, 'mine', lambda d_model, n_heads, d_head, max_len: LearnedPositions(d_model, max_len))
    assert TransformerLM(**small, positions='mine')(text(9)[None]).shape == (1,9,vocab_sz)

@pytest.mark.parametrize('field', ['eps','pos_base'])
@pytest.mark.parametrize('value', [0, -1., math.inf, None, 'no'])
def test_above_zero(field, value):
    with pytest.raises(ValueError, match=f'{field}={value!r}'): make_config(**{field:value})

def test_wrong_mode():
    "A name like the others, though no table has it"
    with pytest.raises(ValueError, match="mode='fat'"): make_config(mode='fat')

def test_frozen():
    "A configuration is changed by making another"
    c = make_config('gpt2')
    with pytest.raises(AttributeError): c.d_model = 3
    assert replace(c, d_model=64).d_model==64 and make_config(c, n_heads=2).positions=='learned'

@pytest.mark.parametrize('kw', [dict(d_model=16.), dict(max_len=8.5), dict(n_heads=None), dict(d_ff=-3), dict(n_kv_heads=0), dict(n_layers='2'), dict(vocab_sz=0), dict(p=None), dict(emb_p=1.), dict(word_p=-.1), dict(head_p='no')])
def test_wrong_numbers(kw):
    "The field and its value are named"
    (field,value), = kw.items()
    with pytest.raises(ValueError, match=f'{field}={value!r}'): TransformerConfig(**kw)
    TransformerConfig(d_model=np.int64(16), p=np.float32(.1), d_ff=None)    # numbers from numpy are numbers

@pytest.mark.parametrize('half', [torch.bfloat16,torch.float16])
@pytest.mark.parametrize('y_range', [(1900,2030), (0,200_000)])
def test_range_in_half_precision(half, y_range):
    "Years were multiples of 8 in bfloat16, and prices above 65,504 infinite in float16"
    clf,x = build(TransformerClassifier, make_config(**{**small, 'n_out':1})), mixed()
    clf.range = TransformerClassifier(**small, y_range=y_range).range
    with torch.no_grad(), torch.autocast('cpu', half): got = clf(x)
    low,high = y_range
    assert (got-clf(x)).abs().max() < 0.01*(high-low)

# Nothing

@pytest.mark.parametrize('shape', [(0,5),(0,20),(2,0)], ids=str)
def test_nothing_to_read(shape):
    "No texts, or texts without a token: outputs for as many"
    x,make = torch.zeros(shape, dtype=torch.long), dict(vocab_sz=vocab_sz, d_model=8, n_heads=2, max_len=8)
    assert TransformerClassifier(**make)(x).shape==(shape[0],2) and TransformerMLM(**make)(x).shape==(shape[0],max(1, shape[1]),vocab_sz)
    assert Seq2SeqTransformer(**make)(x, x).shape==TransformerLM(**make)(x).shape==(*shape,vocab_sz)
