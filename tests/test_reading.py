"Generation reads a model and touches nothing: shadows, threads, long prompts, steps with and without what is there for speed"
import dataclasses, gc, math, subprocess, sys, threading, warnings, weakref
import pytest, torch
from fastai.text.all import AWD_LSTM, awd_lstm_lm_config, get_language_model
from functools import partial
from hypothesis import given, settings, strategies as st
from pathlib import Path
from torch import nn
from fastai_txf.base.products import is_linear
from fastai_txf.base.shadow import kept_shadow
from fastai_txf.generate import decode, faststep, readers
from fastai_txf.generate.beam import beam_search
from fastai_txf.generate.cache import KVCache
from fastai_txf.generate.readers import begin_step, CachedReader, make_reader, next_logits, Reader
from fastai_txf.generate.decode import generate, stream_tokens, token_logprobs
from fastai_txf.generate.sampling import apply_temperature, checked_logits, sample
from fastai_txf.model.layers import TransformerBlock
from fastai_txf.model.models import Seq2SeqTransformer, TransformerLM
from fixtures import uncompiled

V = 30

def ids(*lens): return [torch.randint(0, V, (n,)) for n in lens]

def tiny(cls=TransformerLM, mult=4, **kwargs):
    "A random model with distinct answers, much dropout, in training mode"
    drop = dict(p=0.5, emb_p=0.5, attn_p=0.5)
    model = cls(**{**dict(vocab_sz=V, d_model=32, n_heads=4, max_len=12), **drop, **kwargs})
    with torch.no_grad():
        for p in model.parameters(): p.mul_(mult)
    return model

def awd():
    "fastai's recurrent model, which keeps its state on its modules"
    model = get_language_model(AWD_LSTM, V, {**awd_lstm_lm_config, 'emb_sz':16, 'n_hid':16, 'n_layers':2})
    with torch.no_grad():
        for p in model.parameters(): p.mul_(3)
    return model

def seen(model):
    "All of a model and of torch that a call might leave changed"
    ms = list(model.modules())
    return dict(modes=[m.training for m in ms], names=[sorted(vars(m)) for m in ms],
                hooks=[{k:list(v) for k,v in vars(m).items() if k.endswith('_hooks')} for m in ms],
                weights=[(id(p), p.data_ptr(), p.stride(), p.requires_grad, p.grad) for p in model.parameters()],
                state=[vars(m).get('hidden') for m in ms],
                flags=(torch.backends.mkldnn.enabled, torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

class Spy(TransformerBlock):
    "A block of the user's that calls `look` whenever it computes"
    look = staticmethod(lambda: None)
    def forward(self, x, cache=None, **kwargs):
        Spy.look()
        return super().forward(x, cache=cache, **kwargs)

x = torch.tensor([[5,9,4]])
CALLS = dict(generate=lambda m: generate(m, x, 20, temperature=0),
             several=lambda m: generate(m, x, 70, temperature=0, n_samples=5),
             ragged=lambda m: torch.stack([t[-9:] for t in generate(m, ids(2, 20, 5), 9, seed=1)]),
             beams=lambda m: beam_search(m, x, 9, num_beams=3)[0],
             logprobs=lambda m: token_logprobs(m, x),
             logits=lambda m: next_logits(m, x))
MODELS = dict(rotary=tiny, learned=partial(tiny, positions='learned'), conv=partial(tiny, positions='conv'), awd=awd,
              own_block=partial(tiny, block=Spy), wrapped=lambda: nn.Sequential(tiny()))
each_model = pytest.mark.parametrize('make', MODELS.values(), ids=MODELS)

# Nothing is touched

@each_model
@pytest.mark.parametrize('call', CALLS.values(), ids=CALLS)
def test_touches_nothing(make, call):
    model = make()
    before = seen(model)
    call(model)
    assert seen(model) == before

def test_touches_nothing_meanwhile(monkeypatch):
    "As the model's own blocks see it during each call"
    model,found = tiny(block=Spy), []
    before = seen(model)
    def look():
        now = seen(model)
        found.append([k for k in before if k != 'flags' and now[k] != before[k]])
    monkeypatch.setattr(Spy, 'look', look)
    for call in CALLS.values(): call(model)
    assert found and not any(found)

@each_model
@pytest.mark.parametrize('n_samples', [1,5])
def test_suspended_stream(make, n_samples, monkeypatch):
    "Between two tokens, after closing, and when it is forgotten; nobody keeps it"
    model,readers = make(),[]
    def kept(*args, **kwargs):
        readers.append(weakref.ref(reader := make_reader(*args, **kwargs)))
        return reader
    monkeypatch.setattr(decode, 'make_reader', kept)
    before = seen(model)
    stream = lambda: stream_tokens(model, x, 80, temperature=0, n_samples=n_samples)
    for end in ('close','drop'):
        steps = stream()
        for _ in range(3):
            next(steps)
            assert seen(model) == before
        if end == 'close': steps.close()
        del steps
        assert seen(model) == before and readers[-1]() is None

@each_model
def test_streams_in_turns(make):
    "Two streams on one model, one closed early, while the model computes in training: each is what it is alone"
    model = make()
    want = [torch.stack(list(stream_tokens(model, t, 12, temperature=0))) for t in (x,x+1)]
    a,b = [stream_tokens(model, t, 12, temperature=0) for t in (x,x+1)]
    got = [[],[]]
    for i in range(12):
        got[0].append(next(a))
        if i < 7: got[1].append(next(b))
        if i == 7: b.close()
        with torch.no_grad(): model(x)
    assert torch.stack(got[0]).equal(want[0]) and torch.stack(got[1]).equal(want[1][:7])

def test_dropped_model():
    "A model that nobody holds is gone, whatever has been generated with it"
    model = tiny()
    generate(model, x, 9); next(stream_tokens(model, x, 9))
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None

def in_threads(jobs):
    "What each of the jobs gives, a thread for each, switching all the time"
    out,interval = [None]*len(jobs), sys.getswitchinterval()
    def work(i):
        try: out[i] = jobs[i]()
        except Exception as e: out[i] = e
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(jobs))]
    sys.setswitchinterval(1e-5)
    try:
        for t in threads: t.start()
        for t in threads: t.join(60)
    finally: sys.setswitchinterval(interval)
    assert not any(t.is_alive() for t in threads)
    return out

@each_model
def test_threads(make):
    "Eight threads, all calls mixed: the answers of one"
    model = make()
    fixed = {k:f for k,f in CALLS.items() if k != 'ragged'}
    want,before = {k:f(model) for k,f in fixed.items()}, seen(model)
    def job(k): return k, [fixed[k](model) for _ in range(2)]
    got = in_threads([partial(job, k) for k in [*fixed, *fixed][:8]])
    for k,answers in got:
        for a in answers: torch.testing.assert_close(a, want[k], atol=1e-5, rtol=1e-5)
    assert seen(model) == before

# Without what is there for speed

WITHOUT = '''
import sys, pytest
class Gone:
    "Finds no faststep"
    def find_spec(self, name, path=None, target=None):
        if name == 'fastai_txf.generate.faststep': raise ImportError(f'{name} is deleted')
sys.meta_path.insert(0, Gone())
sys.path[:0] = ['.','tests']
from fastai_txf.generate import decode, readers
assert readers.faster is None and 'fastai_txf.generate.faststep' not in sys.modules
speed = 'compile or recorded or layout or follows or not_recorded or record'
tests = ['test_logits', 'test_logits_in_step', 'test_batch_is_its_rows', 'test_foreign_batch', 'test_n_samples',
         'test_exhaustive', 'test_one_beam', 'test_scores', 'test_long_logprobs', 'test_abandoned', 'test_bounded_reader']
sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', 'tests/test_decoding.py', '-k', ' or '.join(tests)]))
'''

def test_without_faststep():
    "With its module deleted, decoding passes its tests of equality"
    run = partial(subprocess.run, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=550)
    res = run([sys.executable, '-c', WITHOUT])
    assert res.returncode == 0 and ' passed' in res.stdout, res.stdout[-2000:] + res.stderr[-500:]

def test_without_faststep_nothing_compiles(monkeypatch):
    monkeypatch.setattr(readers, 'faster', None)
    model = tiny()
    assert generate(model, x, 20, temperature=0).shape == (1,23)
    with pytest.raises(ValueError, match='needs fastai_txf.generate.faststep'): generate(model, x, 3, compile=True)

@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason='a torch without oneDNN')
@pytest.mark.parametrize('dtype,rows,layout', [(torch.float32, 1, 'columns'), (torch.float32, 3, 'columns'), (torch.float32, 4, 'packed'), (torch.float32, 32, 'packed'),
                                               (torch.bfloat16, 1, 'packed'), (torch.bfloat16, 4, 'packed'), (torch.float64, 4, 'columns')])
def test_layout_where_mkl_misses_avx512(monkeypatch, dtype, rows, layout):
    "One text gains, too; packed where that is faster still; the same logits; the model's weights stay"
    monkeypatch.setattr(faststep, 'mkl_misses_avx512', lambda: True)
    model = TransformerLM(vocab_sz=600, d_model=256, n_heads=4, n_layers=1, tie=False).to(dtype).eval()
    before = [(p.data_ptr(), p.stride()) for p in model.parameters()]
    own = lambda n=70, **kw: faststep.faster(model, rows, n, alone=True, **kw)[0]
    kind = lambda m: 'packed' if isinstance(m.head, faststep._PackedLinear) else 'columns' if m.head.weight.stride() == (1,600) else 'rows'
    assert kind(own()) == layout and kind(own(9)) == 'rows' and kind(own(9, compile=True)) != 'packed'
    x = torch.randint(0, 600, (rows,5))
    with torch.inference_mode(): torch.testing.assert_close(own()(x), model(x), **(dict(atol=0.05, rtol=0.05) if dtype == torch.bfloat16 else {}))
    with torch.autocast('cpu'): assert kind(own()) != 'packed'
    with torch.backends.mkldnn.flags(enabled=False): assert kind(own()) == ('columns' if rows >= 4 else 'rows')
    assert generate(model, x, 70).shape == (rows,75) and before == [(p.data_ptr(), p.stride()) for p in model.parameters()]

@pytest.mark.parametrize('kwargs', [dict(), dict(ff='gelu_tanh'), dict(config='llama'), dict(positions='alibi', n_kv_heads=2)], ids=str)
def test_faster_is_the_same(kwargs):
    "Recorded steps against plain ones, to 1e-6 of the logits' size, one text and several"
    model = tiny(mult=1, **kwargs)
    for prompts in (ids(3), ids(2, 7, 20)):
        fast,slow = [make_reader(model, prompts) for _ in range(2)]
        slow.begin = partial(begin_step, slow.model)
        for i in range(20):
            a,b = [r.next() if i else r.prefill() for r in (fast,slow)]
            assert (a-b).abs().max() <= 1e-6*max(1, b.abs().max())
            for r in (fast,slow): r.append(b.argmax(-1))
        assert fast.step is not None and fast.begin.func is faststep._record_step

@pytest.mark.parametrize('d', [1,2,7,512,1024])
def test_row_gelu(d):
    "A row's GELU without oneDNN, to 1e-6"
    row = torch.randn(1, 1, d)*3
    got = faststep._row_gelu(row)
    assert got.shape == row.shape and (got-nn.functional.gelu(row)).abs().max() < 1e-6
    assert (got-nn.functional.gelu(row.double())).abs().max() < 1e-6

def test_library_flags_stay(monkeypatch):
    "No flag of torch is set, not even for a moment"
    def refuse(*args): raise AssertionError('a flag is set')
    monkeypatch.setattr(torch._C, '_set_mkldnn_enabled', refuse)
    monkeypatch.setattr(torch, 'set_num_threads', refuse)
    model = tiny()
    for call in CALLS.values(): call(model)

# Compiled steps

def scale(m): m.encoder.config = dataclasses.replace(m.config, scale_emb=True)
def head(m):
    m.head = nn.Linear(32, V)
    nn.init.normal_(m.head.weight)

CHANGES = dict(base=lambda m: [vars(b.attn.fn.positions).update(base=7.) for b in m.encoder.blocks],
               act=lambda m: [setattr(b.ff.fn, 'act', nn.Tanh()) for b in m.encoder.blocks],
               scale=scale, head=head,
               eps=lambda m: vars(m.encoder.blocks[0].attn.norm).update(eps=100.),
               part=lambda m: m.encoder.blocks.__setitem__(1, m.encoder.blocks[0]),
               untied=lambda m: setattr(m.head, 'weight', nn.Parameter(torch.randn(V, 32))),
               trained=lambda m: [p.data.mul_(0.5) for p in m.parameters()],
               double=lambda m: m.double())

@pytest.mark.parametrize('change', CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize('n_texts', [1,4])
def test_program_follows(monkeypatch, change, n_texts):
    "A program that was made before a change is not used after it (the compiler itself left out)"
    built = []
    def build(*args):
        built.append(args)
        return uncompiled(*args)
    monkeypatch.setattr(faststep, '_build', build)
    model,prompts = tiny(n_layers=2), torch.randint(0, V, (n_texts,4))
    def written(compile): return generate(model, prompts, 12, temperature=0, compile=compile)
    assert written(True).equal(before := written(False)) and written(True).equal(before) and len(built) == 1
    change(model)
    now = written(False)
    assert written(True).equal(now) and (len(built) == 1) == (change is CHANGES['trained'])

def test_programs_are_forgotten(monkeypatch):
    "With the shadow that they were made for, which ends with a change or with the model"
    monkeypatch.setattr(faststep, '_build', uncompiled)
    model = tiny()
    generate(model, x, 5, compile=True)
    n,ref = len(faststep._compiled), weakref.ref(kept_shadow(model))
    scale(model)
    kept_shadow(model); gc.collect()
    assert ref() is None and len(faststep._compiled) < n

def test_compile_in_threads(monkeypatch):
    "One thread compiles, the others wait for it"
    built = []
    monkeypatch.setattr(faststep, '_build', lambda *args: built.append(0) or uncompiled(*args))
    model = tiny()
    want = generate(model, x, 20, temperature=0)
    for got in in_threads([partial(generate, model, x, 20, temperature=0, compile=True)]*8): assert got.equal(want)
    assert len(built) == 1

# Long prompts

def read_all(model, idxs, n, max_len):
    "`n` greedy tokens after all of `idxs` has been read, token by token"
    cache = KVCache(max_len)
    with torch.no_grad():
        for t in idxs.T: out = model(t[:,None], cache)
        for _ in range(n):
            idxs = torch.cat([idxs, out[:,-1:].argmax(-1)], 1)
            out = model(idxs[:,-1:], cache)
    return idxs

@settings(max_examples=15)
@given(st.sampled_from(['rotary','alibi','none','sinusoidal']), st.integers(1, 3), st.integers(1, 6),
       st.lists(st.integers(1, 50), min_size=1, max_size=4), st.integers(1, 9))
def test_long_prompts(positions, n_layers, max_len, lens, piece):
    "What is left out and read in pieces changes nothing, in batches of any lengths"
    model = tiny(n_layers=n_layers, max_len=max_len, positions=positions, d_model=16).double().eval()
    prompts = ids(*lens)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(readers, '_piece', piece)
        got = generate(model, prompts, 8, temperature=0)
    for p,t in zip(prompts, got): assert t.equal(read_all(model, p[None], 8, max_len)[0])

def test_reach():
    "No more is read than can matter, and all of that matters"
    model = tiny(n_layers=3, max_len=5, d_model=16).double().eval()
    prompt,n = torch.randint(0, V, (1,60)), 3*4+1
    reader = make_reader(model, prompt)
    out = reader.prefill()
    assert reader.cache.n == n
    changed = lambda i: torch.cat([prompt[:,:i], (prompt[:,i:i+1]+1)%V, prompt[:,i+1:]], 1)
    assert next_logits(nn.Sequential(model), prompt, n).shape == out.shape
    with torch.no_grad(): banded = lambda p: model(p, KVCache(5))[:,-1]
    assert not torch.allclose(banded(changed(60-n)), out, atol=1e-12)
    torch.testing.assert_close(banded(changed(60-n-1)), out, atol=1e-12, rtol=0)

# Beams

def by_enumeration(logp, first, n, num_beams, ends, penalty, all_ends):
    "The search as a loop; ends of all candidates count, or of those before the last that goes on"
    live,ended = [(0., ())], []
    for i in range(1, n+1):
        grown = [(s+logp[([first, *t])[-1]][v].item(), (*t, v)) for s,t in live for v in range(len(logp))]
        live = sorted(((s, t) for s,t in grown if not ends(t)), reverse=True)[:num_beams]
        least = -math.inf if all_ends or not live else live[-1][0]
        ended += [(s/i**penalty, t) for s,t in grown if ends(t) and s > least]
    return max(ended + [(s/n**penalty, t) for s,t in live])

class Table(nn.Module):
    "What follows a token depends on it alone"
    def __init__(self, logp):
        super().__init__()
        self.logp = logp
    def forward(self, x): return self.logp[x]

@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.,0.7,1.,2.]),
       st.sets(st.integers(0, 5)), st.sampled_from(['stop_idx','is_end']))
def test_beams_are_a_loop(seed, v, n, num_beams, penalty, stop, how):
    "However many candidates end, the best text is that of a loop"
    logp = (2*torch.randn(v, v, generator=torch.Generator().manual_seed(seed))).double().log_softmax(-1).float()
    want,_ = by_enumeration(logp, 0, n, num_beams, lambda t: t[-1] in stop, penalty, how == 'stop_idx')
    opts = dict(stop_idx=[*stop]) if how == 'stop_idx' else dict(is_end=lambda t: t[-1] in stop)
    texts,scores = beam_search(Table(logp), torch.zeros(1, 1).long(), n, num_beams=num_beams, length_penalty=penalty, **opts)
    assert scores[0] >= want - 1e-4 and len(texts) == len({*map(tuple, texts.tolist())})

def test_many_ends():
    "Where hundreds of candidates end, the one that goes on is found"
    v = 500
    logp = torch.full((v,v), -6.5)
    logp[:,499] = -9.
    logp[499] = torch.full((v,), -20.).index_fill(0, torch.tensor([7]), -1e-3)
    texts,scores = beam_search(Table(logp), torch.zeros(1, 1).long(), 6, num_beams=2, is_end=lambda t: t[-1] < 499)
    assert texts[0].tolist()[:3] == [0,499,7] and scores[0] > -5

def test_drop():
    "Texts that a function refuses are not followed; if it refuses all, what there was is the answer"
    logp = torch.tensor([[.6,.3,.1]]*3).log()
    runs = lambda t: len(t) > 2 and len({*t[-3:]}) == 1
    texts,_ = beam_search(Table(logp), torch.zeros(1, 1).long(), 9, num_beams=3, drop=runs)
    for t in texts.tolist(): assert not any(runs(t[1:i]) for i in range(2, 11))
    texts,scores = beam_search(Table(logp), torch.zeros(1, 1).long(), 9, num_beams=3, drop=lambda t: len(t) > 2)
    assert texts.shape == (3,3) and texts[0].tolist() == [0,0,0] and scores[0].item() == pytest.approx(math.log(.6), abs=1e-5)

@pytest.mark.parametrize('penalty', [1e5,-1e5,400.])
def test_extreme_length_penalty(penalty):
    texts,scores = beam_search(tiny(), x, 5, num_beams=2, length_penalty=penalty)
    assert texts.shape == (2,8) and not scores.isnan().any()

# Numbers

@pytest.mark.parametrize('t', [1e-12,1e-38,1e-50,1e-300,5e-324])
@pytest.mark.parametrize('dtype', [torch.float32,torch.float64,torch.bfloat16,torch.float16])
def test_tiny_temperature(t, dtype):
    "The likeliest, or one of those that tie with it, and no NaN"
    logits = torch.tensor([[1.,3.,3.,-math.inf],[0.,-50.,1.,2.]], dtype=dtype)
    probs = apply_temperature(logits, t).float().softmax(-1)
    torch.testing.assert_close(probs, torch.tensor([[0.,.5,.5,0.],[0.,0.,0.,1.]]))
    model = tiny()
    assert generate(model, x, 9, temperature=t, seed=1).equal(generate(model, x, 9, temperature=0))

def test_extreme_logits():
    "Infinities with a meaning are no divergence, NaN is, wherever it stands"
    checked_logits(torch.tensor([[-math.inf, 3e38, 3e38, 0.]]))
    model = tiny()
    model.head.weight.data.mul_(1e6)
    assert generate(model, x, 9).shape == (1,12) and token_logprobs(model, x).isfinite().all()
    beam_search(model, x, 5)
    for row in range(0, V, 7):
        model = tiny(tie=False)
        model.head.weight.data[row] = math.nan
        for call in CALLS.values():
            if call is CALLS['logits']: continue
            with pytest.raises(ValueError, match='diverged'): call(model)
        with pytest.raises(ValueError, match='diverged'): generate(model, x, 9, temperature=0)
        with pytest.raises(ValueError, match='diverged'): generate(model, x, 9, top_k=3, top_p=.9, rel_min_p=.1)

def test_quantized():
    "Weights of 8 bits: cached, through plain steps"
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        plain = tiny().eval()
        for m in plain.modules():
            if is_linear(m): m.__class__ = nn.Linear                        # torch packs its own class alone
        model = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    reader = make_reader(model, x)
    assert isinstance(reader, CachedReader) and reader.begin.func is begin_step
    want,cache = x, KVCache(12)
    out = model(x, cache)                                                   # not token by token: ranges are those of a whole call
    for _ in range(30):
        want = torch.cat([want, out[:,-1:].argmax(-1)], 1)
        out = model(want[:,-1:], cache)
    assert generate(model, x, 30, temperature=0).equal(want)
    assert beam_search(model, x, 9, num_beams=4)[0].shape == (4,12) and generate(model, x, 70, n_samples=5).shape == (5,73)

def test_replaced_forward():
    "A `forward` set on a model or a part by hand is run"
    model = tiny()
    model.eval()
    plain = model.forward
    model.forward = lambda x, cache=None: plain(x, cache).flip(-1)
    assert type(make_reader(model, x)) is Reader
    assert next_logits(model, x).equal(model(x)[:,-1])
    model = tiny().eval()
    act = model.encoder.blocks[0].ff.fn.act
    act.forward = torch.tanh
    assert make_reader(model, x).begin.func is begin_step

def test_misspelt():
    "The option that was meant is named"
    for call in (generate, stream_tokens):
        with pytest.raises(TypeError, match="temprature.*'temperature'"): call(tiny(), x, 1, temprature=1.)
        with pytest.raises(TypeError, match="n_sample.*'n_samples'"): call(tiny(), x, 1, n_sample=2)

def log_n(rotate):
    "Queries that grow with the logarithm of their place, a common idea"
    def f(*args):
        q,k = rotate(*args[:-1], args[-1])
        return q*torch.tensor([math.log(i+2) for i in args[-1].tolist()])[:,None], k
    return f

@pytest.mark.parametrize('how', ['instance','class'])
def test_replaced_methods(how, monkeypatch):
    "A method that is set on a part, or patched into its class, is run at every step"
    model = tiny(n_layers=2, max_len=64)
    positions = model.decoder.positions
    if how == 'instance': positions.rotate = log_n(positions.rotate)
    else: monkeypatch.setattr(type(positions), 'rotate', log_n(type(positions).rotate))
    x = torch.randint(0, V, (1,4))
    for i in range(4): assert generate(model, x, 40, seed=i).equal(generate(model, x, 40, seed=i, cache=False))

def test_patched_forward(monkeypatch):
    "It is what writes, with a cache and without"
    model,plain = tiny(mult=1), TransformerLM.forward
    def never_seven(self, x, cache=None): return plain(self, x, cache).index_fill(-1, torch.tensor(7), -1e9)
    x = torch.randint(0, 7, (1,4))
    assert (generate(model, x, 300, seed=1) == 7).any()
    monkeypatch.setattr(TransformerLM, 'forward', never_seven)
    for cache in (True,False): assert not (generate(model, x, 300, seed=1, cache=cache) == 7).any()
