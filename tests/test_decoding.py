"What is read once against what is read again: caches, ragged batches, beams, streams, lists"
import gc, itertools, math, re, shutil, warnings
import numpy as np, pandas as pd, pytest, torch
from fastai.text.all import AWD_LSTM, CrossEntropyLossFlat, Learner, awd_lstm_lm_config, language_model_learner
from functools import partial
from hypothesis import example, given, settings, strategies as st
from torch import nn
from fastai_txf.base.compat import compile_errors
from fastai_txf.model.attention import causal_mask, concat_heads, SelfAttention, split_heads
from fastai_txf.generate.cache import KVCache
from fastai_txf.text.codec import text_list, tokenize_like
from fastai_txf.all import *
from fastai_txf.generate import decode
from fastai_txf.generate.readers import begin_step, CachedReader, make_reader, Reader
from fastai_txf.model.layers import FeedForward, TransformerBlock
from fastai_txf.model.config import make_config, PRESETS
from fastai_txf.model.models import TransformerLM
from fastai_txf.model.positions import POSITIONS
from fastai_txf.text.codec import TextStart
from fixtures import uncompiled
from test_generate import Chars, Own, banded, by_hand, dls, lm_dls, remembered, scripted, tiny

torch.set_num_threads(1)
some,few = settings(max_examples=20), settings(max_examples=10)
V,W = 30,12 # tokens, `max_len`
endless = [k for k in POSITIONS if k not in ('learned','conv')]

def ids(*lens): return [torch.randint(0, V, (n,)) for n in lens]

def assert_same(got, want, eps=1e-4):
    "Equal up to `eps` of their scale"
    assert got.shape == want.shape and want.isfinite().all()
    diff = (got-want).abs().max().item() / want.abs().max().item()
    assert diff < eps, f'{diff:.1e} of the scale apart'

# Cached against read again

def cached(preset): return dict(positions='learned') if make_config(preset).positions == 'conv' else {} # a convolution is not per token

cases = {**{k: dict(config=k, **cached(k)) for k in PRESETS}, **{f'{k} positions': dict(positions=k) for k in POSITIONS if k != 'conv'},
         'one key head': dict(n_kv_heads=1), 'two key heads, alibi': dict(n_kv_heads=2, positions='alibi'), 'two key heads, learned': dict(config='llama', n_kv_heads=2, positions='learned'),
         'narrow': dict(mode='narrow'), 'norms of queries and keys': dict(qk_norm=True, n_kv_heads=2), 'bigrams': dict(bigrams=50), 'bigrams, learned': dict(bigrams=50, positions='learned'), 'all bigrams': dict(bigrams=V*(V+1), positions='alibi'), 'one layer': dict(n_layers=1), 'four layers': dict(n_layers=4, positions='learned'),
         'width 1': dict(max_len=1), 'learned, width 1': dict(max_len=1, positions='learned'), 'learned, width 2': dict(max_len=2, positions='learned'),
         'learned, odd width': dict(max_len=7, positions='learned'), 'odd width': dict(max_len=7)}

@torch.no_grad()
def walk(model, prompts, more, max_len=None, cache=True):
    "The reader's logits before each column of `more`, `(bs, n, vocab_sz)`"
    reader,res = make_reader(model, prompts, max_len, cache), []
    assert isinstance(reader, CachedReader)
    for new in more.T:
        res.append(reader.next() if res else reader.prefill())
        reader.append(new)
    return torch.stack(res, 1)

@torch.no_grad()
def walk_by_hand(model, prompts, more, width):
    "The same from plain forwards, text by text"
    res = []
    for prompt,new in zip(prompts, more):
        x,n = torch.cat([prompt, new])[None], len(prompt)
        if model.encoder.positions.max_len is None: res.append(banded(model, x, width)[0,n-1:-1])
        else: res.append(torch.cat([by_hand(model, x[:,:i], n, width) for i in range(n, x.shape[1])]))
    return torch.stack(res)

@pytest.mark.parametrize('case', cases)
def test_logits(case):
    "Ragged prompts, one of them beyond `max_len`, and on until the cache has rolled over several times"
    model,more = tiny(**{**dict(max_len=W), **cases[case]}), torch.randint(0, V, (3,26))
    prompts = ids(1, 7, 20)
    if 'bigrams' in case: model.double() # pairs of random vectors: far apart, and rounding with them
    want = walk_by_hand(model, prompts, more, model.config.max_len)
    assert_same(walk(model, prompts, more), want)
    if case in ('default','gpt2','alibi positions'): assert_same(walk(model, prompts, more, cache=False), want)

@pytest.mark.parametrize('positions', ['rotary','learned'])
def test_logits_in_step(positions):
    "Texts of one length, narrower than the model allows, and wider"
    model,x,more = tiny(positions=positions, max_len=8), torch.randint(0, V, (2,4)), torch.randint(0, V, (2,16))
    for given,width in ((3,3), (None,8), (11, 11 if positions=='rotary' else 8)):
        want = walk_by_hand(model, x, more, width)
        for cache in (True,False): assert_same(walk(model, x, more, given, cache), want)

def test_references_differ():
    "Past `max_len` the band, the whole past and the sliding window are three things, as are the two rules of learned positions"
    with torch.no_grad():
        model,x = tiny(max_len=W), torch.randint(0, V, (1,30))
        whole = model.head(model.encoder(x, causal_mask(30)))
        a,b,c = model(x)[:,-1], whole[:,-1], model(x[:,-W:])[:,-1]
        assert_same(model(x), banded(model, x, W))
        assert_same(banded(model, x[:,:W], W), model(x[:,:W]))
        model = tiny(positions='learned', max_len=W)
        d,e = by_hand(model, x[:,:-1], 5, W), model(x[:,-1-W:-1])[:,-1]
    for p,q in ((a,b), (a,c), (b,c), (d,e)): assert not torch.allclose(p, q, atol=0.05*p.abs().max().item())
    assert [remembered(n, 5, 12) for n in (5,12,13,18,19,25)] == [0,0,6,6,12,18] and remembered(30, 30, 12) == 18

@torch.no_grad()
def test_half_precision():
    "bfloat16 through the cache, as far as its eight bits go"
    model,prompts,more = tiny(max_len=W).bfloat16(), ids(3, 9), torch.randint(0, V, (2,20))
    got = walk(model, prompts, more)
    assert got.dtype == torch.bfloat16
    assert_same(got.float(), walk_by_hand(model, prompts, more, W).float(), 0.1)

# Batches

torch.manual_seed(0)
models = {k: tiny(positions=k, max_len=8).double() for k in POSITIONS} # double: no near ties

@some
@given(st.sampled_from(sorted(models)), st.lists(st.lists(st.integers(0, V-1), min_size=1, max_size=20), min_size=1, max_size=4), st.integers(0, 14), st.booleans())
def test_batch_is_its_rows(positions, prompts, n, cache):
    "Greedy texts do not know of each other"
    model = models[positions]
    got = generate(model, prompts, n, temperature=0, cache=cache)
    want = [generate(model, [p], n, temperature=0)[0] for p in prompts]
    assert [t.tolist() for t in got] == [t.tolist() for t in want]
    assert all(t[:len(p)].tolist() == p and len(t) == len(p)+n for p,t in zip(prompts, got))

def awd_learner(dls, width=16): return language_model_learner(dls, AWD_LSTM, pretrained=False, config={**awd_lstm_lm_config, 'emb_sz':width, 'n_hid':width, 'n_layers':2})

def test_foreign_batch(dls):
    "Nor do they with other modules, those with a state among them, or with end tokens"
    awd = awd_learner(dls).model
    for model in (Own(V), awd):
        got = generate(model, ids(1, 6, 3), 9, temperature=0)
        for t,n in zip(got, (1,6,3)): assert t.tolist() == generate(model, t[None,:n], 9, temperature=0)[0].tolist()
    model,stop = models['rotary'], [3,4,5,6,7,8]
    prompts = ids(2, 9, 5, 1)
    got = generate(model, prompts, 25, temperature=0, stop_idx=stop)
    for t,p in zip(got, prompts):
        alone = generate(model, p[None], 25, temperature=0, stop_idx=stop)[0].tolist()
        assert t.tolist()[:len(alone)] == alone and set(t.tolist()[len(alone):]) <= {alone[-1]}

def test_compile_but_for_the_compiler(monkeypatch):
    "The same texts; who cannot is told"
    monkeypatch.setattr('fastai_txf.generate.faststep._build', uncompiled)
    for model in (models['learned'], models['alibi'], tiny('llama', max_len=8).double()):
        for prompts in (ids(5), ids(12), ids(3, 9)): # one text far past `max_len`, and two
            got,want = [generate(model, prompts, 14, temperature=0, compile=o) for o in (True,False)]
            assert [t.tolist() for t in got] == [t.tolist() for t in want]
    for model,opts in ((model, dict(cache=False)), (models['conv'], {}), (nn.Sequential(model), {})):
        with pytest.raises(ValueError, match='compile=True'): generate(model, prompts, 3, compile=True, **opts)

def test_no_compiler(monkeypatch):
    "Where the step cannot be compiled a warning says why and what helps, once, and the texts are the same"
    def fails(*args): raise compile_errors()[0]('InvalidCxxCompiler: No working C++ compiler found')
    monkeypatch.setattr('fastai_txf.generate.faststep._build', fails)
    for model in (tiny('gpt2'), tiny('llama', max_len=8).double()):
        for prompts in (ids(5), ids(3, 9)):
            with pytest.warns(UserWarning, match='could not be compiled, so writing goes on.*install a C'):
                got = generate(model, prompts, 14, temperature=0, compile=True)
            with warnings.catch_warnings():
                warnings.simplefilter('error')
                again = generate(model, prompts, 14, temperature=0, compile=True)
            want = generate(model, prompts, 14, temperature=0)
            assert [t.tolist() for t in got] == [t.tolist() for t in again] == [t.tolist() for t in want]

# The cache by itself

def feed(model, cache, x, sizes):
    "The logits of `x`, read in stretches of `sizes` (repeated)"
    res,i = [],0
    for n in itertools.cycle(sizes):
        if i >= x.shape[1]: return torch.cat(res, 1)
        res.append(model(x[:,i:i+n], cache)); i += n

widths = st.none() | st.integers(1, 9)
sizes  = st.lists(st.integers(1, 7), min_size=1, max_size=6)

@few
@given(st.sampled_from(endless), widths, sizes, st.integers(1, 30), st.data())
def test_chunks(positions, width, sizes, n, data):
    "Any stretches equal one pass, with padding before some texts too"
    model,x = models[positions], torch.randint(0, V, (3,n))
    first = min(sizes[0], n)
    pads = data.draw(st.lists(st.integers(0, first-1), min_size=3, max_size=3))
    real = torch.arange(first) >= torch.tensor(pads)[:,None] if any(pads) or data.draw(st.booleans()) else None
    cache = KVCache(width, real)
    with torch.no_grad():
        got = feed(model, cache, x, sizes)
        for row,pad,out in zip(x, pads, got): assert_same(out[None,pad:], banded(model, row[None,pad:], width or n), 1e-9)
    assert cache.k_len <= (width or n) + max(sizes) - 1

@few
@given(st.sampled_from(endless), widths, sizes, st.integers(1, 20), st.lists(st.integers(0, 2), min_size=1, max_size=5), st.data())
def test_select(positions, width, sizes, n, rows, data):
    "Rows taken out, repeated and turned round go on as if they had been read in that order"
    model,x,more = models[positions], torch.randint(0, V, (3,n)), torch.randint(0, V, (len(rows),9))
    first = min(sizes[0], n)
    pads = torch.tensor(data.draw(st.lists(st.integers(0, first-1), min_size=3, max_size=3)))
    real = torch.arange(first) >= pads[:,None]
    a,b = KVCache(width, real), KVCache(width, real[rows])
    with torch.no_grad():
        feed(model, a, x, sizes)
        assert a.select(torch.tensor(rows)) is a
        got = feed(model, a, more, sizes)
        feed(model, b, x[rows], sizes)
        assert_same(got, feed(model, b, more, sizes), 1e-9)

@pytest.mark.parametrize('width,chunk', [(1,1), (8,1), (8,3), (5,20)])
def test_bounded(width, chunk):
    "A rolling cache takes no more than twice what it must hold (and a column that is never filled), and gives back what a long prompt took"
    model,cache = models['alibi'], KVCache(width)
    columns = lambda: [c.shape[2]-1 for kv in cache.layers.values() for c in kv]
    with torch.no_grad():
        for _ in range(12):
            feed(model, cache, torch.zeros(1, chunk).long(), [chunk])
            assert len(columns()) == 2*model.config.n_layers and max(columns()) <= 2*(width+chunk) and cache.k_len <= width+chunk-1
        for _ in range(2*(width+chunk)): model(torch.zeros(1, 1).long(), cache)
    assert max(columns()) <= 2*width

def test_bounded_reader():
    "So does a reader, and learned positions never need more than twice their number"
    for positions in ('rotary','learned'):
        reader = make_reader(models[positions], ids(2, 5), None, True)
        with torch.no_grad():
            for i in range(35):
                reader.next() if i else reader.prefill()
                reader.append(torch.tensor([1,2]))
        assert all(c.shape[2]-1 <= 2*(8+5) for kv in reader.cache.layers.values() for c in kv)

# Models that cannot use it

class NoCacheBlock(TransformerBlock):
    "A user's block, from before there were caches"
    def forward(self, x, mask=None, pos=None): return super().forward(x, mask=mask, pos=pos)

class OwnBlock(nn.Module):
    "A user's block from scratch"
    def __init__(self, d_model):
        super().__init__()
        self.rnn = nn.GRU(d_model, d_model, batch_first=True)
    def forward(self, x, mask=None, pos=None): return x + self.rnn(x)[0]

class OwnForward(TransformerLM):
    def forward(self, x): return super().forward(x)*torch.linspace(-2, 2, V)

class OwnHidden(TransformerLM):
    def hidden(self, x, cache=None): return super().hidden(x, cache).flip(-1)

class OwnName(TransformerLM): "Nothing but a name"

def small(cls=TransformerLM, **kwargs):
    model = cls(**{**dict(vocab_sz=V, d_model=32, n_heads=4, max_len=W), **kwargs}).eval()
    with torch.no_grad():
        for p in model.parameters(): p.mul_(4)
    return model

fallbacks = {'block without a cache': lambda: small(block=NoCacheBlock), 'block without a cache, learned': lambda: small(block=NoCacheBlock, positions='learned'),
             'block from scratch': lambda: small(block=OwnBlock), 'own forward': lambda: small(OwnForward), 'own hidden': lambda: small(OwnHidden),
             'conv': lambda: small(positions='conv'), 'conv, preset': lambda: small(config='reviews'), 'inside another module': lambda: nn.Sequential(small())}

@pytest.mark.parametrize('case', fallbacks)
def test_fallbacks(case):
    "They read everything again, in a sliding window"
    model = fallbacks[case]()
    if not hasattr(model, 'config'): model.config = model[0].config
    assert not isinstance(make_reader(model, torch.zeros(1,1, dtype=torch.long), None, True), CachedReader)
    prompts = ids(3, 15)
    for got,x in zip(generate(model, prompts, 12, temperature=0), prompts):
        for _ in range(12): x = torch.cat([x, model(x[None,-W:])[0,-1].argmax(-1, keepdim=True)])
        assert got.tolist() == x.tolist()

def shifted(x): return nn.functional.pad(x[:,:-1], (0,0,1,0))

class ShiftFF(FeedForward):
    "Sees a token before, too, as RWKV does"
    back = 1
    def forward(self, x): return super().forward(x + nn.functional.pad(x, (0,0,self.back,0))[:,:x.shape[1]])

class FarFF(ShiftFF): back = 9

class LinearAttention(SelfAttention):
    "Causal, without a use for masks and caches (Katharopoulos et al. 2020)"
    def forward(self, x, mask=None, pos=None, **kwargs):
        q,k,v = (split_heads(t, self.n_heads) for t in self.qkv(x).chunk(3, -1))
        return self.out(concat_heads(((nn.functional.elu(q)+1) @ (nn.functional.elu(k)+1).mT).tril() @ v))

class NoMask(SelfAttention):
    "Keeps keys and values, and looks at padding"
    def forward(self, x, mask=None, pos=None, **kwargs): return super().forward(x, None, pos, **kwargs)

class ShiftEmbedding(nn.Embedding):
    def forward(self, x): return super().forward(x) + shifted(super().forward(x))

class ShiftEncoder(TransformerEncoder):
    def forward(self, x, mask=None, cache=None, **kwargs): return shifted(super().forward(x, mask, cache, **kwargs))

class ShiftHead(nn.Linear):
    def forward(self, h): return super().forward(h + shifted(h))

class ReluFF(FeedForward):
    "Each token alone; it draws a number, for nothing"
    def forward(self, x):
        torch.rand(1)
        return self.out(self.up(x).relu())

def changed(where, cls=None, **kwargs):
    "A model in which one part is of another class, or all of one class are"
    model = small(**kwargs)
    for m in [m for m in model.modules() if type(m) is where] if isinstance(where, type) else [where(model)]: m.__class__ = cls
    return model

def hooked(where, hook):
    model = small()
    where(model).register_forward_hook(hook)
    return model

looking_back = {
    'feed-forward': lambda: small(block=partial(TransformerBlock, ff=ShiftFF)), 'far back': lambda: small(block=partial(TransformerBlock, ff=FarFF), max_len=32),
    'linear attention': lambda: changed(SelfAttention, LinearAttention), 'no mask': lambda: changed(SelfAttention, NoMask),
    'embedding': lambda: changed(lambda m: m.encoder.emb, ShiftEmbedding), 'encoder': lambda: changed(lambda m: m.encoder, ShiftEncoder),
    'head': lambda: changed(lambda m: m.head, ShiftHead), 'hook': lambda: hooked(lambda m: m.encoder.blocks[0], lambda m,x,out: out+shifted(out)),
    'hook of a part': lambda: hooked(lambda m: m.encoder.blocks[1].ff.fn.up, lambda m,x,out: out+shifted(out)), 'learned': lambda: small(block=partial(TransformerBlock, ff=ShiftFF), positions='learned')}

@pytest.mark.parametrize('case', looking_back)
def test_parts_that_look_back(case):
    "Parts of one's own that see other tokens, or keep none: what is written and said of a text is what the model says of it whole"
    model,prompts = looking_back[case](), ids(3, 1, 6)
    with torch.no_grad():
        for got,x in zip(generate(model, prompts, 6, temperature=0), prompts):
            for _ in range(6): x = torch.cat([x, model(x[None])[0,-1].argmax(-1, keepdim=True)])
            assert got.tolist() == x.tolist()
        best = beam_search(model, prompts[0][None], 4, num_beams=2)[0]
        assert best.equal(beam_search(nn.Sequential(model), prompts[0][None], 4, num_beams=2)[0])
        assert_same(token_logprobs(model, x[None]), token_logprobs(nn.Sequential(model), x[None]))
    with pytest.raises(ValueError, match='compile=True'): generate(model, prompts, 2, compile=True)

@pytest.mark.parametrize('positions', ['alibi','learned'])
@pytest.mark.parametrize('max_len', [1,2,3,W])
def test_parts_that_do_not_look_back(positions, max_len):
    "Parts of one's own that take each token alone have the cache, and asking them draws no numbers and changes nothing"
    model = small(block=partial(TransformerBlock, ff=ReluFF), positions=positions, max_len=max_len).train()
    prompts = ids(2, 1)
    before,state = [dict(vars(m)) for m in model.modules()], torch.get_rng_state()
    reader = make_reader(model, prompts, None)
    assert isinstance(reader, CachedReader) or max_len < 3
    assert torch.get_rng_state().equal(state) and [dict(vars(m)) for m in model.modules()] == before

def test_decoder_that_looks_back():
    "The same of an encoder–decoder"
    kw = dict(vocab_sz=V, d_model=16, n_heads=2, n_layers=2)
    src = torch.randint(2, V, (2,5))
    for ff,cls in ((ReluFF,CachedReader), (ShiftFF,Reader)):
        model = Seq2SeqTransformer(block=partial(TransformerBlock, ff=ff), **kw).eval()
        with torch.no_grad():
            for p in model.parameters(): p.mul_(4)
        x = torch.randint(2, V, (2,2))
        assert type(make_reader(model, x, None, src=src)) is cls
        got = generate(model, x, 5, src=src, temperature=0)
        for _ in range(5): x = torch.cat([x, model(src, x)[:,-1:].argmax(-1)], 1)
        assert got.equal(x)

def shared(**kwargs):
    "All blocks are one (Lan et al. 2020)"
    model = small(n_layers=3, max_len=32, **kwargs)
    for i in (1, 2): model.encoder.blocks[i] = model.encoder.blocks[0]
    return model

@pytest.mark.parametrize('how', [{}, dict(cache=False), dict(compile=True)], ids=str)
def test_layers_that_share_weights(how):
    "Each call of one attention has keys and values of its own"
    model,prompts = shared(), ids(3, 7)
    assert isinstance(make_reader(model, prompts, None), CachedReader)
    with torch.no_grad():
        for got,x in zip(generate(model, prompts, 9, temperature=0, **how), prompts):
            for _ in range(9): x = torch.cat([x, model(x[None])[0,-1].argmax(-1, keepdim=True)])
            assert got.tolist() == x.tolist()

def test_beams_of_layers_that_share_weights():
    model,x = shared(), ids(4)[0][None]
    got,want = [beam_search(m, x, 6, num_beams=3) for m in (model, nn.Sequential(model))]
    assert got[0].equal(want[0])
    assert_same(token_logprobs(model, got[0]), token_logprobs(nn.Sequential(model), got[0]))

def test_not_causal():
    "A model that has seen what comes after says nothing of the next token"
    for f in (lambda m: generate(m, ids(2, 5), 1), lambda m: token_logprobs(m, ids(2, 5)), lambda m: beam_search(m, ids(1, 5), 1)):
        with pytest.raises(TypeError, match='continues none'): f(small(causal=False))

def test_subclass_is_cached():
    "A subclass that changes neither `forward` nor `hidden`"
    assert isinstance(make_reader(small(OwnName), torch.zeros(1,1, dtype=torch.long), None, True), CachedReader)

# Traces

def state(model):
    "All that generation might leave changed"
    return ([m.training for m in model.modules()], {k:v.clone() for k,v in model.state_dict().items()},
            [(p.shape,p.stride(),p.is_contiguous(),p.requires_grad,p.grad) for p in model.parameters()], torch.get_rng_state(), torch.is_grad_enabled())

def assert_untouched(model, before):
    after = state(model)
    assert after[0] == before[0] and after[2] == before[2] and torch.equal(after[3], before[3]) and after[4] == before[4]
    assert all(torch.equal(v, after[1][k]) for k,v in before[1].items()) and all(p.is_contiguous() for p in model.parameters())

def in_training(**kwargs):
    model = tiny(**{**dict(p=0.5, max_len=6), **kwargs}).train()
    model.encoder.blocks[0].eval()
    return model

@pytest.mark.parametrize('kwargs', [dict(), dict(tie=False), dict(positions='learned'), dict(mode='narrow')], ids=str)
def test_abandoned(kwargs):
    "A stream that is dropped midway, finished, or ended by an error, leaves the model as it was"
    model,x = in_training(**kwargs), torch.randint(0, V, (2,3))
    before = state(model)
    for i,o in enumerate(stream_tokens(model, x, 50, seed=1, n_samples=2)):
        if i == 5: break
    del o; gc.collect()
    assert_untouched(model, before)
    steps = stream_tokens(model, x, 50, seed=1)
    assert_untouched(model, before)                                         # before the first token
    next(steps); steps.close()
    assert_untouched(model, before)
    generate(model, x, 5, seed=1); beam_search(model, x[:1], 5, num_beams=2); token_logprobs(model, x)
    assert_untouched(model, before)
    bad = lambda ids: 1/0
    with pytest.raises(ZeroDivisionError): beam_search(model, x[:1], 9, is_end=bad)
    with pytest.raises(TypeError): generate(model, x, 9, seed=1, barred='a')
    assert_untouched(model, before)

def test_diverged():
    "The error for a model of NaNs leaves it as it was too"
    model = in_training()
    with torch.no_grad(): model.encoder.norm.weight.fill_(math.nan)
    modes = [m.training for m in model.modules()]
    for f in (generate, beam_search, token_logprobs):
        with pytest.raises(ValueError, match='diverged'): f(model, torch.zeros(1, 3).long(), 4)
    assert [m.training for m in model.modules()] == modes and all(p.is_contiguous() for p in model.parameters())

def test_trains_on():
    "A step of training gives the same weights, whether there was a text between or not"
    def run(between):
        torch.manual_seed(0)
        model = tiny(p=0.1, max_len=6).train()
        x = torch.randint(0, V, (4,6))
        for _ in range(3):
            if between: generate(model, x, 5, seed=1); next(stream_tokens(model, x, 5, seed=2))
            nn.functional.cross_entropy(model(x[:,:-1]).flatten(0,1), x[:,1:].flatten()).backward()
            with torch.no_grad():
                for p in model.parameters(): p -= 1e-3*p.grad
            model.zero_grad()
        return model.state_dict()
    a,b = run(False),run(True)
    assert all(torch.equal(v, b[k]) for k,v in a.items())

def test_abandoned_text(dls):
    "The same through `predict` and `stream_text`, the reader's own errors included"
    learn = Learner(dls, in_training(vocab_sz=len(dls.vocab)), loss_func=CrossEntropyLossFlat())
    before = state(learn.model)
    pieces = stream_text(learn, 'It was', n_tokens=20, seed=1)
    next(pieces); del pieces; gc.collect()
    assert_untouched(learn.model, before)
    predict(learn, ['It','was it'], 2, seed=1, stop='z', n_samples=2)
    assert_untouched(learn.model, before)
    def bad(toks): raise RuntimeError('mine')
    with pytest.raises(RuntimeError, match='mine') as held: predict(learn, 'It was', 2, seed=1, decoder=bad)
    assert_untouched(learn.model, before)                                   # even while somebody looks at the traceback
    assert held

# Samples

@pytest.mark.parametrize('positions', ['rotary','learned'])
def test_n_samples(positions):
    "One below the other, as if the prompts had been repeated; different, and repeatable"
    model,x = tiny(positions=positions, max_len=8), torch.randint(0, V, (2,5))
    run = lambda x, n, seed=1, **kw: generate(model, x, 12, n_samples=n, temperature=3., seed=seed, **kw)
    got = run(x, 3)
    assert got.shape == (6,17) and torch.equal(got[:,:5], x.repeat_interleave(3, 0)) and len({*map(tuple, got.tolist())}) == 6
    assert torch.equal(got, run(x.repeat_interleave(3, 0), 1)) and torch.equal(got, run(x, 3)) and not torch.equal(got, run(x, 3, seed=2))
    assert torch.equal(got, run(x, 3, cache=False))
    assert torch.equal(torch.stack(list(stream_tokens(model, x, 12, n_samples=3, temperature=3., seed=1)), 1), got[:,5:])
    prompts = ids(2, 11, 4)
    got,want = run(prompts, 2), run([p for p in prompts for _ in range(2)], 1)
    assert [t.tolist() for t in got] == [t.tolist() for t in want] and [len(t) for t in got] == [14,14,23,23,16,16]
    assert all(torch.equal(t[:len(prompts[i//2])], prompts[i//2]) for i,t in enumerate(got)) and got[0].tolist() != got[1].tolist()
    with pytest.raises(ValueError, match='n_samples=0'): run(x, 0)

def test_n_samples_foreign():
    "With a module that reads everything again"
    model,prompts = Own(V), ids(2, 4)
    got = generate(model, prompts, 6, n_samples=3, seed=1)
    assert [t.tolist() for t in got] == [t.tolist() for t in generate(model, [p for p in prompts for _ in range(3)], 6, seed=1)]
    assert all(len(t) == 6 for t in generate(model, prompts[0][None], 4, n_samples=5, seed=1, stop_idx=[V]))

# Beams

def all_texts(model, x, n, stop=(), barred=()):
    "Every continuation of `x` by up to `n` tokens and its log-probability"
    v = model.config.vocab_sz
    new = torch.tensor(list(itertools.product(range(v), repeat=n)))
    with torch.no_grad(): logits = model(torch.cat([x.expand(len(new), -1), new], 1))[:,x.shape[1]-1:-1]
    logits[...,list(barred)] = -math.inf
    logp = logits.log_softmax(-1).gather(-1, new[...,None])[...,0]
    res = {}
    for text,lp in zip(new.tolist(), logp.double()):
        k = next((i+1 for i,t in enumerate(text) if t in stop), n)
        if lp[:k].sum() > -math.inf: res[tuple(text[:k])] = lp[:k].sum().item()
    return res

def unpadded(text, stop):
    "A tuple of the new tokens up to the first of `stop`"
    return tuple(text[:next((i+1 for i,t in enumerate(text) if t in stop), len(text))])

@pytest.mark.parametrize('stop,barred,beams', [((),(),125), ((2,),(),64), ((1,3),(),27), ((0,2,4),(),8), ((0,2,4),(1,),1), ((3,),(0,),27), ((0,1,2,3,4),(),5)])
def test_exhaustive(stop, barred, beams):
    "As many beams as there are unfinished texts find the best of all"
    model,x = tiny(vocab_sz=5, d_model=16, max_len=8), torch.tensor([[1,4,0]])
    logp = all_texts(model, x, 4, stop, barred)
    for length_penalty in (0, 0.5, 1, 2):
        want = {t: lp/len(t)**length_penalty for t,lp in logp.items()}
        texts,scores = beam_search(model, x, 4, num_beams=beams, length_penalty=length_penalty, stop_idx=list(stop), barred=list(barred) or None)
        assert len(texts) == len(scores) == min(beams, len(want)) and (texts[:,:3] == x).all()
        best = torch.tensor(sorted(want.values(), reverse=True)[:beams])
        assert torch.allclose(scores, best, atol=1e-4) and torch.equal(scores, scores.sort(descending=True)[0])
        got = [unpadded(t, stop) for t in texts[:,3:].tolist()]
        assert len(set(got)) == len(got) and torch.allclose(scores, torch.tensor([want[t] for t in got]), atol=1e-4)
        for t,full in zip(got, texts[:,3:].tolist()): assert full == [*t, *[t[-1]]*(texts.shape[1]-3-len(t))]

def test_is_end():
    "Ends that are a function of the new tokens"
    model,x = tiny(vocab_sz=5, d_model=16, max_len=8), torch.tensor([[1,4,0]])
    ends = lambda t: 2 in t
    texts,scores = beam_search(model, x, 4, num_beams=125, length_penalty=0.5, is_end=ends)
    stopped,s = beam_search(model, x, 4, num_beams=125, length_penalty=0.5, stop_idx=2)
    assert torch.equal(texts, stopped) and torch.equal(scores, s)

class Chain(nn.Module):
    "From 0 to 1 or to 2, and from 2 to 2 for ever"
    def forward(self, x): return torch.tensor([[0.,.6,.4], [1.,0.,0.], [0.,0.,1.]]).clamp(min=1e-9).log()[x]

def test_beams_outlive_an_end():
    "An ended text takes no beam from those that go on, and wins if length does not count"
    start = torch.zeros(1, 1).long()
    texts,scores = beam_search(Chain(), start, 4, num_beams=1, stop_idx=1)
    assert texts.tolist() == [[0,2,2,2,2]] and scores.item() == pytest.approx(math.log(.4)/4, abs=1e-5)
    texts,scores = beam_search(Chain(), start, 4, num_beams=1, stop_idx=1, length_penalty=0)
    assert texts.tolist() == [[0,1]] and scores.item() == pytest.approx(math.log(.6), abs=1e-5)

@pytest.mark.parametrize('model', [*models.values(), Own(V)], ids=[*models, 'foreign'])
def test_one_beam(model):
    "One beam is the greedy text, past `max_len` too"
    x = torch.randint(0, V, (1,5))
    for n in (0,1,14):
        texts,scores = beam_search(model, x, n, num_beams=1)
        assert torch.equal(texts, generate(model, x, n, temperature=0)) and scores.shape == (1,)

@pytest.mark.parametrize('length_penalty', [0, 1, 1.5])
def test_scores(length_penalty):
    "What `token_logprobs` says of the new tokens; the cache changes nothing"
    for positions in endless:
        model,x = models[positions], torch.randint(0, V, (1,5))
        texts,scores = beam_search(model, x, 10, num_beams=4, length_penalty=length_penalty)
        want = token_logprobs(model, texts)[:,4:].sum(1)/10**length_penalty
        assert texts.shape == (4,15) and torch.allclose(scores, want.float(), atol=1e-5) and (scores.diff() <= 0).all()
        again,s = beam_search(model, x, 10, num_beams=4, length_penalty=length_penalty, cache=False)
        assert torch.equal(again, texts) and torch.allclose(s, scores)

def test_beams_barred():
    "What is barred never comes, repetition gets dearer, a list of one text will do"
    model,x = models['rotary'], ids(4)
    free = beam_search(model, x, 12, num_beams=5)[0]
    barred = free[:,4:].unique().tolist()[:3]
    assert not set(barred) & set(beam_search(model, x, 12, num_beams=5, barred=barred)[0][:,4:].unique().tolist())
    assert len(beam_search(model, x, 12, num_beams=5, rep_penalty=50.)[0][0].unique()) > len(free[0].unique())
    assert torch.equal(free, beam_search(model, x[0][None], 12, num_beams=5)[0])

def test_beam_errors():
    "Values out of range and several texts"
    model,x = models['rotary'], torch.zeros(1, 2).long()
    for opts,says in ((dict(num_beams=0), 'num_beams=0'), (dict(num_beams=1.5), 'num_beams=1.5'), (dict(length_penalty=math.nan), 'length_penalty=nan'),
                      (dict(max_len=0), 'max_len=0'), (dict(rep_penalty=0), 'rep_penalty=0')):
        with pytest.raises(ValueError, match=says): beam_search(model, x, 3, **opts)
    with pytest.raises(ValueError, match='n=-1'): beam_search(model, x, -1)
    for two in (x.expand(2, -1), ids(2, 3)):
        with pytest.raises(ValueError, match='2 texts'): beam_search(model, two, 3)
    with pytest.raises(TypeError, match='temperature'): beam_search(model, x, 3, temperature=0.5)

# How likely a text is

@torch.no_grad()
def logprobs(logits, x): return logits.log_softmax(-1).gather(-1, x[:,1:,None])[...,0]

@torch.no_grad()
def by_windows(model, x, width):
    "The logits of each token but the last: the first window that reaches it and begins at a multiple of `width//2`"
    half,res = max(1, width//2), []
    for i in range(x.shape[1]-1):
        start = 0 if i < width else -(-(i-width+1)//half)*half
        res.append(model(x[:,start:i+1])[:,-1])
    return torch.stack(res, 1)

@pytest.mark.parametrize('positions', models)
def test_logprobs(positions):
    "One forward up to `max_len`, no gradients, and nothing for a single token"
    model = models[positions]
    for n in (2,8,9):
        x = torch.randint(0, V, (3,n))
        got = token_logprobs(model, x)
        assert got.shape == (3,n-1) and not got.requires_grad and (got <= 0).all()
        assert_same(got, logprobs(model(x[:,:-1]), x).float(), 1e-5)
    assert token_logprobs(model, x[:,:1]).shape == (3,0) and token_logprobs(model, ids(4, 4)).shape == (2,3)

@pytest.mark.parametrize('positions', endless)
@pytest.mark.parametrize('width', [None, 1, 3, 11, 50])
def test_long_logprobs(positions, width):
    "The band"
    model,x = models[positions], torch.randint(0, V, (2,35))
    assert_same(token_logprobs(model, x, width), logprobs(banded(model, x[:,:-1], width or 8), x).float(), 1e-5)

@pytest.mark.parametrize('kind', models)
def test_width_in_a_number_of_numpys(kind):
    x = torch.randint(0, V, (2,20))
    assert token_logprobs(models[kind], x, np.int64(5)).equal(token_logprobs(models[kind], x, 5))

@pytest.mark.parametrize('kind', ['learned','conv','foreign'])
def test_window_logprobs(kind):
    "Windows that overlap by half, where there is no cache that rolls"
    model = models.get(kind, nn.Sequential(models['rotary']))
    if kind == 'foreign': model.config = models['rotary'].config
    for width,n in ((None,35), (1,9), (2,9), (3,20), (5,33), (8,9), (8,10), (8,13)):
        x = torch.randint(0, V, (2,n))
        assert_same(token_logprobs(model, x, width), logprobs(by_windows(model, x, width or 8), x).float(), 1e-5)

def test_logprobs_of_others(dls):
    "A module without `max_len` reads all; AWD_LSTM from a clean state; texts of different length are refused"
    own,x = Own(V), torch.randint(0, V, (2,20))
    assert_same(token_logprobs(own, x), logprobs(own(x[:,:-1]), x))
    awd = awd_learner(dls).model.eval()
    a = token_logprobs(awd, x)
    awd.reset()
    assert_same(a, logprobs(awd(x[:,:-1])[0], x))
    assert torch.equal(a, token_logprobs(awd, x))
    for model in (own, models['rotary'], models['learned']):
        with pytest.raises(ValueError, match='one length'): token_logprobs(model, ids(3, 5))
    with pytest.raises(ValueError, match='max_len=0'): token_logprobs(own, x, 0)

# `predict` on several texts

def learner(dls, model): return Learner(dls, model, loss_func=CrossEntropyLossFlat())

@pytest.fixture(scope='module')
def learners(dls):
    "Untrained, but decided"
    n,awd = len(dls.vocab),awd_learner(dls)
    with torch.no_grad():
        for p in awd.model.parameters(): p.mul_(3)
    return dict(rotary=learner(dls, tiny(vocab_sz=n, max_len=8).double()), learned=learner(dls, tiny(vocab_sz=n, max_len=8, positions='learned').double()),
                own=learner(dls, Own(n)), awd=awd)

kinds = pytest.mark.parametrize('kind', ['rotary','learned','own','awd'])
prompts = ['It was', '', 'The cat sat on the mat. '*4, 'zyx', 'very']

@kinds
def test_lists(learners, kind):
    "A list, a series, a data frame, a tuple: what each text gives alone; samples, beams and options too"
    learn = learners[kind]
    df = pd.DataFrame(dict(text='no', said=prompts), index=[7,7,1,0,'a'])
    for texts,opts in ((prompts, dict(n_words=4)), (df, dict(n_tokens=12, text_col='said')), (df.said, dict(n_words=3, stop=['a','e'])),
                       (tuple(prompts), dict(n_tokens=9, max_len=5, no_unk=False, rep_penalty=1.5))):
        want = [predict(learn, t, temperature=0, **opts) for t in prompts]
        assert all(w.startswith(t) for w,t in zip(want, prompts)) and len(set(want)) == len(want)
        assert predict(learn, texts, temperature=0, **opts) == want
    assert predict(learn, df, 1, temperature=0) == [predict(learn, 'no', 1, temperature=0)]*5
    for bad in ([], df[:0]):
        with pytest.raises(ValueError, match='no (text|rows)'): predict(learn, bad)
    with pytest.raises(ValueError, match="'words'"): predict(learn, df, text_col='words')
    with pytest.raises(TypeError, match='number 1'): predict(learn, pd.Series(['a', math.nan]))

@kinds
def test_samples(learners, kind):
    "`n_samples` of one prompt are a list, of several a list of lists; a seed repeats them"
    learn = learners[kind]
    one = predict(learn, 'It was', n_tokens=8, n_samples=4, temperature=2., seed=1)
    assert len(one) == 4 and len(set(one)) > 1 and all(t.startswith('It was') for t in one)
    assert one == predict(learn, 'It was', n_tokens=8, n_samples=4, temperature=2., seed=1) == predict(learn, ['It was']*4, n_tokens=8, temperature=2., seed=1)
    many = predict(learn, prompts, n_words=3, n_samples=2, seed=1)
    assert [len(o) for o in many] == [2]*5 and all(t.startswith(p) for p,ts in zip(prompts, many) for t in ts)
    assert [t for ts in many for t in ts] == predict(learn, [p for p in prompts for _ in range(2)], n_words=3, seed=1)
    assert predict(learn, ['a'], n_samples=1, temperature=0) == [predict(learn, 'a', temperature=0)]

@kinds
def test_predict_beams(learners, kind):
    "`num_beams` goes through; what sampling needs is refused by name"
    learn = learners[kind]
    want = [predict(learn, t, n_tokens=6, num_beams=3) for t in prompts]
    assert predict(learn, prompts, n_tokens=6, num_beams=3) == want and all(w.startswith(t) for w,t in zip(want, prompts))
    for beams in (1,3): # the end is likeliest for a model that only knows it
        ends = scripted(learn.dls, 'xxbos xxmaj it xxbos xxbos xxbos xxbos')
        assert predict(ends, 'It', n_tokens=5, num_beams=beams) == 'It' and len(predict(ends, 'It', n_tokens=5, num_beams=beams, min_tokens=5, no_unk=False, decoder=' '.join)) > 9
    words = predict(learn, 'It', 3, num_beams=3, length_penalty=0.5, max_len=6, cache=False, rep_penalty=1.2)
    assert words.startswith('It') and len([w for w in words.split() if any(map(str.isalnum, w))]) <= 4
    bad = dict(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, rel_min_p=0.1, seed=1, n_samples=2)
    for k,v in bad.items():
        with pytest.raises(ValueError, match=f'{k}={v}'): predict(learn, 'It', num_beams=2, **{k:v})
    with pytest.raises(ValueError, match='temperature=0.*seed=3'): predict(learn, 'It', num_beams=2, temperature=0, seed=3)
    with pytest.raises(ValueError, match='num_beams=0'): predict(learn, 'It', num_beams=0)
    assert predict(learn, 'It', 4, num_beams=1, temperature=0) == predict(learn, 'It', 4, temperature=0)

def test_best_beam(dls):
    "The text of the best beam, decoded: against `beam_search` on the ids"
    model = tiny(vocab_sz=len(dls.vocab), max_len=8).double()
    specials = [i for i,t in enumerate(dls.vocab) if t in ('xxpad','xxfake','xxunk','xxfld')]
    x = torch.tensor([[dls.vocab.index(t) for t in 'xxbos xxmaj it was'.split()]])
    best = beam_search(model, x, 5, num_beams=3, barred=specials, stop_idx=dls.vocab.index('xxbos'))[0][0,4:].tolist()
    want = ' '.join(decode_specials([t for t in map(dls.vocab.__getitem__, best) if t != 'xxbos']))
    assert predict(learner(dls, model), 'It was', n_tokens=5, num_beams=3) == f'It was {want}'.rstrip()

@kinds
def test_edges(learners, kind):
    "No words given, none known, more than the model reads: alone, in a list, by beams and as a stream"
    learn = learners[kind]
    for opts in (dict(num_beams=2), dict(temperature=0)):
        for t in ('', 'zyx qwq', ' ', 'the cat sat '*9): assert predict(learn, t, n_tokens=3, **opts).startswith(t)
        assert all(t.startswith(p) for t,p in zip(predict(learn, prompts, n_words=1, **opts), prompts))
    for t in prompts[:3]: assert t + ''.join(stream_text(learn, t, 3, seed=1)) == predict(learn, t, 3, seed=1)

def test_no_number(learners):
    "What is no number, or no length at all, is named"
    learn = learners['rotary']
    for kw,says in ((dict(temperature='hot'), "temperature='hot'"), (dict(top_p='0.9'), "top_p='0.9'"), (dict(n_words=None), 'n_words=None and n_tokens=None')):
        with pytest.raises(ValueError, match=says): predict(learn, 'It', **kw)
    assert predict(learn, 'It', n_words=None, n_tokens=3, seed=0) == predict(learn, 'It', n_tokens=3, seed=0)

@pytest.mark.parametrize('opts', [dict(), dict(temperature=0), dict(num_beams=2)], ids=str)
def test_no_words(learners, opts):
    "None wanted: the prompt"
    for none in (dict(n_words=0), dict(n_tokens=0), dict(n_words=5, n_tokens=0), dict(n_words=0, stop='a')):
        assert predict(learners['rotary'], 'It was', **none, **opts) == 'It was' and predict(learners['own'], prompts, **none, **opts) == prompts
    assert predict(learners['awd'], 'It', 0, n_samples=2) == ['It','It'] and list(stream_text(learners['learned'], 'It', 0)) == []

# Where a text ends

def test_stop(dls):
    "Before the first of the strings, wherever its tokens are cut; never met, it changes nothing"
    learn = scripted(dls, 'xxbos xxmaj it was a very , very bad idea to watch xxbos')
    end = lambda stop, n=50: predict(learn, 'It', n, temperature=0, stop=stop)
    full = 'It was a very , very bad idea to watch'
    assert end(None) == end([]) == end('film') == end(['film','sat']) == full
    assert end('bad') == end(['watch','bad']) == end(['bad','watch']) == end('bad idea') == 'It was a very , very '
    assert end('d id') == 'It was a very , very ba' and end(' a') == 'It was' and end('was') == 'It' == end(['w','was'])
    assert end('very', 2) == 'It was a' and end('very', 3) == 'It was a ' and end('a very') == 'It was '
    assert end('bad', 3) == 'It was a very' and end('bad', 5) == 'It was a very , very ' and end('bad', 4) == 'It was a very , very'
    assert predict(learn, 'It', n_tokens=4, temperature=0, stop='bad') == 'It was a very ,'
    assert predict(learn, ['It','It was','It was a very ,'], n_tokens=20, temperature=0, stop='ver') == ['It was a ', 'It was a ', 'It was a very ,']
    for bad in ('', ['a',''], 3, [None]):
        for f in (predict, stream_text):
            with pytest.raises(ValueError, match='stop='): f(learn, 'It', 2, stop=bad)

@pytest.fixture(scope='module')
def chars(): return begun(lm_dls(tok=Chars(), rules=[], sep=''))

def begun(dls):
    "`dls` with `xxbos` before every text"
    fs = text_list(dls).tfms.fs
    fs[-1:] = [TextStart(), fs[-1]]
    return dls

def recite(dls, text):
    "A learner that ends every prompt as `text` does"
    return scripted(dls, ' '.join(['xxbos', *text.replace(' ', '▁'), 'xxbos']))

text_of = st.text('ab .', min_size=1, max_size=15).filter(str.strip)

@some
@given(text_of, st.lists(st.text('ab .', min_size=1, max_size=4), max_size=3), st.none() | st.integers(1, 5), st.integers(0, 4))
@example('abab a', ['ba ','b a'], None, 0)
@example('ab', ['b'], 1, 1)
def test_stop_by_characters(chars, text, stop, n_words, n_given):
    "The first end that the growing text reaches, a word or a string, whichever begins before; the stream says the same"
    prompt,new = text[:n_given],text[n_given:]
    if prompt.endswith(' '): prompt += 'a'                                  # a space at the joint is another matter
    def ends(t):
        words = [] if n_words is None else [m.end() for m in re.finditer(r'\S+(?=\s)', t) if any(map(str.isalnum, m[0]))]
        return [t.index(s) for s in stop if s in t] + words[(n_words or 1)-1:][:1]
    want = next((new[:min(ends(new[:i]))] for i in range(len(new)+1) if ends(new[:i])), new)
    learn = recite(chars, prompt+new)
    opts = dict(n_words=n_words) if n_words else dict(n_tokens=50)
    assert predict(learn, prompt, temperature=0, stop=stop, **opts) == prompt + want
    sent = ''
    for piece in stream_text(learn, prompt, temperature=0, stop=stop, **opts):
        assert piece
        sent += piece
        assert not any(s in sent for s in stop) and want.startswith(sent)
    assert sent == want

# Streams

@kinds
def test_stream(learners, kind, capsys):
    "Prints what it returns, which is what `predict` gives without; one text only"
    learn = learners[kind]
    for opts in (dict(n_words=5, seed=1), dict(n_tokens=12, temperature=0, stop=['e','at ']), dict(n_words=0), dict(n_tokens=6, seed=2, no_bar=True, only_last_word=True, no_unk=False)):
        for t in prompts[:3]:
            want = predict(learn, t, **opts)
            capsys.readouterr()
            got = predict(learn, t, stream=True, **opts)
            assert got == want and capsys.readouterr().out == got + '\n'
    for bad in (dict(num_beams=2), dict(n_samples=2)):
        with pytest.raises(ValueError, match=f'{[*bad][0]}=2'): predict(learn, 'a', stream=True, **bad)
    with pytest.raises(ValueError, match='2 prompts'): predict(learn, ['a','It'], stream=True)
    with pytest.raises(TypeError, match='one str'): stream_text(learn, ['a'])
    for bad,says in ((dict(temperature=-1), 'temperature=-1'), (dict(n_words=-1), 'n_words=-1'), (dict(top_k=0), 'top_k=0')):
        with pytest.raises(ValueError, match=says): stream_text(learn, 'a', **bad)
    with pytest.raises(TypeError, match='topk'): stream_text(learn, 'a', topk=3)

def test_pieces(dls):
    "A piece for each word, as soon as it is known; a mark waits for its word, a stop string for its end"
    learn = scripted(dls, 'xxbos xxmaj it was a xxmaj very , very xxrep 3 ! bad idea xxbos')
    pieces = lambda **kw: list(stream_text(learn, 'It', n_tokens=50, temperature=0, **kw))
    assert pieces() == [' was',' a',' Very',' ,',' very',' !!!',' bad',' idea']
    assert pieces(stop='bad idea') == [' was',' a',' Very',' ,',' very',' !!!',' ']
    assert ''.join(pieces(stop='very !!! bad boy')) == ' was a Very , very !!! bad idea' and pieces(stop='was') == []
    assert pieces(decoder=lambda toks: [t.upper() for t in toks])[:3] == [' WAS',' A',' XXMAJ']
    learn.model.lens.clear()
    first = next(stream_text(learn, 'It', 50, temperature=0))
    assert first == ' was' and learn.model.lens == [3]                      # no token more than needed

# Other tokens

def byte_chars():
    "GPT-2's printable character for each byte"
    keep = [*range(ord('!'), ord('~')+1), *range(ord('¡'), ord('¬')+1), *range(ord('®'), ord('ÿ')+1)]
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256+i) for i,b in enumerate(rest)}}

class Bytes:
    "Tokens of `size` bytes, wherever characters begin and end"
    to_char = byte_chars()
    to_byte = {c:b for b,c in to_char.items()}
    def __init__(self, size=1, **kwargs): self.size = size
    def tokens(self, text):
        s = ''.join(self.to_char[b] for b in text.encode())
        return [s[i:i+self.size] for i in range(0, len(s), self.size)]
    def __call__(self, items): return map(self.tokens, map(str, items))
    def detokenize(self, tokens): return bytes(self.to_byte[c] for t in tokens for c in t).decode(errors='replace')

odd = ['Ça va, le café? 🎬🎬 oui — très bon, naïve 映画!', ' é', '🎬', 'a\nb  c', 'xé\ufffdy', 'ni\u200dß 👩‍👧 end']

@pytest.fixture(scope='module', params=[1,3])
def byte_learner(request):
    "`make(text)`: the text is what the model says"
    tok = Bytes(request.param)
    dls = begun(lm_dls(odd*3, tok=tok, rules=[], sep='', bs=2))
    def make(text): return scripted(dls, ' '.join(['xxbos', *tok.tokens(text), 'xxbos']))
    return make, tok

@pytest.mark.parametrize('text', odd)
def test_bytes(byte_learner, text):
    "Any text comes back whole, and its stream has no half characters"
    make,tok = byte_learner
    learn = make(text)
    assert predict(learn, '', n_tokens=200, temperature=0) == text == predict(learn, [''], n_tokens=200, temperature=0)[0]
    pieces = list(stream_text(learn, '', n_tokens=200, temperature=0))
    assert ''.join(pieces) == text and sum(p.count('\ufffd') for p in pieces) == text.count('\ufffd') and all(pieces)
    if tok.size == 1: assert max(map(len, pieces)) <= 2
    for n in range(1, len(tok.tokens(text)), 1 + len(text)//9):             # cut anywhere, even inside a character
        want = tok.detokenize(tok.tokens(text)[:n])
        assert predict(learn, '', n_tokens=n, temperature=0) == want == ''.join(stream_text(learn, '', n_tokens=n, temperature=0))

def test_bytes_given(byte_learner, capsys):
    "After a prompt, up to a word, before a string of many bytes"
    make,tok = byte_learner
    text = odd[0]
    given = text[:5]                                                        # six bytes
    learn = make(text)
    run = lambda **kw: predict(learn, given, temperature=0, **kw)
    assert run(n_tokens=200) == text and run(n_words=50) == text
    assert run(n_words=1).removeprefix(given).strip(' ,') == 'le' and run(n_words=2).endswith('café?')
    assert run(n_words=50, stop='🎬') == text[:text.index('🎬')] == run(n_tokens=200, stop=['映','🎬 ','🎬🎬'])
    capsys.readouterr()
    assert run(n_words=50, stop='naïve', stream=True) + '\n' == capsys.readouterr().out == text[:text.index('naïve')] + '\n'

@pytest.mark.parametrize('text', ['It was a bad idea.', ' a  b ', 'I', '.  .', 'Very, very good!!!'])
def test_characters_round_trip(chars, text):
    "Spaces at either end and in a row"
    learn = recite(chars, text)
    assert predict(learn, '', n_tokens=50, temperature=0) == text == ''.join(stream_text(learn, '', n_tokens=50, temperature=0))
    for i in range(1, len(text)):
        if text[i-1] != ' ': assert predict(learn, text[:i], n_tokens=50, temperature=0) == text

@pytest.mark.parametrize('text', ['The cat think its a very good film . Very , very good !!!', 'It was a bad idea to watch IT at night .', 'The cat the cat the cat sat .'])
def test_words_round_trip(dls, text):
    "fastai's tokens and back, from nothing and from every beginning"
    toks = [*tokenize_like(dls, [text])[0], 'xxbos']
    learn,words = scripted(dls, ' '.join(toks)), text.split()
    assert predict(learn, '', n_tokens=50, temperature=0) == text == ''.join(stream_text(learn, '', 50, temperature=0))
    starts = [' '.join(words[:i]) for i in range(1, len(words)) if 'the cat' not in text]
    if starts: assert predict(learn, starts, 50, temperature=0) == [text]*len(starts)

# Compiled

@pytest.mark.skipif(shutil.which('g++') is None, reason='the compiler of torch needs one of C++ on a CPU')
def test_compiled(monkeypatch):
    "The same texts, past `max_len` too, of other lengths and after more training; without a cache there is nothing to compile"
    monkeypatch.setenv('AOTI_RUNTIME_CHECK_INPUTS', '1')                    # all that the code takes for granted about its tensors
    model = TransformerLM(vocab_sz=V, d_model=8, n_heads=2, n_layers=1, max_len=12, positions='learned')
    def check(*lens):
        prompts = ids(*lens)
        got,want = [generate(model, prompts, 30, temperature=0, compile=o) for o in (True,False)]
        assert [t.tolist() for t in got] == [t.tolist() for t in want]
    check(3, 8)
    check(20, 5)
    for p in model.parameters(): p.data += 0.1*torch.randn_like(p)
    check(2, 3)
    one,among = ids(4), []                                                  # other texts lay the weights out by columns while this one is made
    for i,new in enumerate(stream_tokens(model, one, 9, temperature=0, compile=True)):
        among.append(new.item())
        if i == 3: next(other := stream_tokens(model, ids(3, 1, 2, 5), 70))
        if i == 6: other.close()
    assert among == generate(model, one, 9, temperature=0)[0][4:].tolist()
    with pytest.raises(ValueError, match='compile=True'): generate(model, ids(3), 3, compile=True, cache=False)
    with pytest.raises(ValueError, match='max_len=1'): generate(model, ids(3), 3, compile=True, max_len=1)
    with pytest.raises(ValueError, match='Own'): generate(Own(V), torch.tensor([[1,2,3]]), 3, compile=True)

# The recorded step

presets = [n for n in PRESETS if PRESETS[n].get('positions') != 'conv']

@pytest.mark.parametrize('preset', presets)
@pytest.mark.parametrize('n_layers,dtype,eps', [(1,torch.float64,1e-12), (3,torch.float64,1e-12), (3,torch.float32,1e-4)])
def test_recorded(preset, n_layers, dtype, eps):
    "A recorded step is the step: for every preset, one text and ragged ones, with rolling and with forgotten caches"
    torch.manual_seed(n_layers)
    model = TransformerLM(preset, vocab_sz=V, d_model=16, n_heads=4, n_layers=n_layers, d_ff=32, max_len=16).to(dtype).eval()
    for p in model.parameters(): nn.init.normal_(p, std=0.3)
    for prompts in (ids(3), ids(2, 7, 5)):
        fast,slow = make_reader(model, prompts, None), make_reader(model, prompts, None)
        slow.begin,recorded = partial(begin_step, slow.model),0
        with torch.no_grad():
            for i in range(20):
                a,b = [r.next() if i else r.prefill() for r in (fast,slow)]
                assert_same(a, b, eps)
                for r in (fast, slow): r.append(b.argmax(-1))
                recorded += fast.step is not None
        assert recorded >= 10 and fast.begin.func is not slow.begin.func

def test_record_follows_the_weights():
    "Weights that change while a text is made count from the next token on"
    model = tiny(positions='learned', max_len=32)
    x = ids(3)
    reader,slow = [make_reader(model, x, None) for _ in range(2)]
    slow.begin = partial(begin_step, slow.model)
    with torch.no_grad():
        for i in range(6):
            assert_same(*[r.next() if i else r.prefill() for r in (reader,slow)])
            for r in (reader, slow): r.append(torch.tensor([i]))
            for p in model.parameters(): p.add_(0.1*torch.randn_like(p))

def test_not_recorded():
    "A hook sees every token, and a part of one's own runs its own Python for each"
    model,seen = tiny(), []
    handle = model.encoder.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    generate(model, ids(3), 9)
    handle.remove()
    assert len(seen) == 9
    class Counting(TransformerBlock):
        calls = 0
        def forward(self, x, mask=None, pos=None, cache=None):
            Counting.calls += 1
            return super().forward(x, mask=mask, pos=pos, cache=cache)
    calls = []
    for n in (2, 9):
        generate(tiny(block=Counting, n_layers=1), ids(3), n)
        calls.append(Counting.calls)
        Counting.calls = 0
    assert calls[1] - calls[0] == 7

@pytest.mark.parametrize('how', [{}, dict(cache=False), dict(n_samples=2, temperature=1.)])
def test_hooks_on_the_model(how):
    "What a hook makes of a model's inputs and outputs holds for what the model writes, and no longer"
    model,x = tiny(), torch.randint(0, V, (2,4))
    want = generate(model, x, 5, temperature=0)
    def only(i): return lambda m,x,out: torch.full_like(out, -9.).index_fill(-1, torch.tensor(i), 1e4)
    handle = model.register_forward_hook(only(3))
    assert (generate(model, x, 5, **{'temperature':0, **how})[:,4:] == 3).all()
    assert beam_search(model, x[:1], 5, num_beams=2)[0][0,4:].tolist() == [3]*5
    handle.remove()
    handle = model.register_forward_pre_hook(lambda m,args: (torch.zeros_like(args[0]),))
    zeros = generate(model, x, 1, temperature=0)[:,-1]
    handle.remove()
    assert zeros.equal(generate(model, torch.zeros_like(x), 1, temperature=0)[:,-1])
    assert generate(model, x, 5, temperature=0).equal(want)

def test_hooks_on_an_encoder_decoder():
    model = Seq2SeqTransformer(make_config('default', vocab_sz=V, tgt_vocab_sz=V, d_model=16, n_heads=2, n_layers=1)).eval()
    src = torch.randint(0, V, (1,5))
    model.register_forward_hook(lambda m,x,out: torch.full_like(out, -9.).index_fill(-1, torch.tensor(3), 1e4))
    assert generate(model, torch.zeros(1, 1, dtype=torch.long), 4, src=src, temperature=0)[0,1:].tolist() == [3]*4

def test_two_streams():
    "The end of one text does not turn the dropout of another on"
    model = tiny(positions='learned', p=0.5, max_len=64).train()
    x = torch.randint(0, V, (1,4))
    want = generate(model, x, 12, temperature=0)[0,4:].tolist()
    first,second = [stream_tokens(model, x, n, temperature=0) for n in (3,12)]
    got = []
    for i,new in enumerate(second):
        got.append(new.item())
        if i < 3: next(first)
        else: first.close()
    assert got == want and model.training and all(m.training for m in model.modules())

def test_layout(monkeypatch):
    "Four long texts at once have their weights by columns, on a shadow: the model's do not move, and the texts are the same"
    model,x = tiny(vocab_sz=100, max_len=200).double(), torch.randint(0, 100, (4,4))
    before = [(p.data_ptr(), p.stride()) for p in model.parameters()]
    readers,make = [], decode.make_reader
    monkeypatch.setattr(decode, 'make_reader', lambda *args, **kw: readers.append(make(*args, **kw)) or readers[-1])
    columns = lambda: readers[-1].model.head.weight.stride() == (1,100)
    long,want = [generate(model, x, 70, temperature=0, cache=c) for c in (True,False)]
    assert long.equal(want) and readers[0].model.head.weight.stride() == (1,100)
    generate(model, x, 9); assert not columns()
    generate(model, x[:3], 70); assert not columns()
    generate(model, x[:2], 70, n_samples=2); assert columns()
    next(stream_tokens(model, x, 70)); assert not columns()                 # who holds a stream may train
    assert before == [(p.data_ptr(), p.stride()) for p in model.parameters()]

@pytest.mark.parametrize('form', [lambda x: x.to(torch.uint8), lambda x: x.to(torch.int16), lambda x: x.to(torch.uint16), torch.Tensor.tolist, torch.Tensor.numpy])
def test_next_logits_of_ids_in_any_form(form):
    "As `generate` and `token_logprobs` take them; of one length"
    model,x = TransformerLM(vocab_sz=9, d_model=8, n_heads=2).eval(), torch.tensor([[2,5,3],[4,4,8]])
    assert next_logits(model, form(x)).equal(next_logits(model, x))
    with pytest.raises(ValueError, match='give texts of one length'): next_logits(model, [[2,5],[3]])

@pytest.mark.parametrize('shape', [(5,), (1,0), (1,2,3)])
def test_next_logits_of_another_shape(shape):
    model = TransformerLM(vocab_sz=20, d_model=8, n_heads=2, n_layers=1)
    with pytest.raises(ValueError, match=r'give \(bs, sl\)'): next_logits(model, torch.ones(shape, dtype=torch.long))

X = torch.ones(1, 5, dtype=torch.long)
refused = [(TransformerLM, dict(max_len=n), f'max_len={n} is out of range') for n in (-1,0,1.5)]
refused += [(TransformerLM, dict(src=X), 'reads no source: leave out src'), (Seq2SeqTransformer, {}, 'needs a source to read'),
            (Seq2SeqTransformer, dict(src=X+99), 'token id 100'), (Seq2SeqTransformer, dict(src=X.expand(2, 5)), 'src of shape'),
            (TransformerLM, dict(idxs=X+99), 'token id 100')]

@pytest.mark.parametrize('cls,kw,match', refused)
def test_next_logits_asks_what_generate_asks(cls, kw, match):
    "Nothing is read in another way than was asked for"
    model = cls(vocab_sz=20, d_model=8, n_heads=2, n_layers=1)
    for f in (next_logits, partial(generate, n=1)):
        with pytest.raises(ValueError, match=match): f(model, **{'idxs':X, **kw})
