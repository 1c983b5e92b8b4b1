"Read-only means read-only: looking at a model changes nothing that another caller can see"
import faulthandler, random, statistics, sys, threading, time
from contextlib import suppress
from functools import partial
import pandas as pd, pytest, torch
from fastai_txf.all import (
    CharTokenizer, Seq2SeqDataLoaders, TransformerBlock, decode_specials, encode_text, generate,
    stream_tokens, transformer_classifier_learner, transformer_lm_learner, transformer_mlm_learner,
    transformer_seq2seq_learner)
from fixtures import SMALL, df, dls, dls_lm, quiet

DROP = dict(p=0.3, emb_p=0.3, attn_p=0.3) # a lost evaluation mode changes every answer
FACTORIES = dict(clf=transformer_classifier_learner, lm=transformer_lm_learner,
                 mlm=transformer_mlm_learner, s2s=transformer_seq2seq_learner)
TEXTS = ['music warm clever dull film', 'acting cold with it', 'the film was poor and weak', 'fine']
GAPS = [f'{t} ___ of a ___' for t in TEXTS]
WORDS = ['abca', 'dd', 'bacdbd', 'c']
GREEDY = dict(n_tokens=6, temperature=0)

CALLS = dict(
    clf=dict(predict=lambda o, i: o.predict(TEXTS[i]),
             predict_many=lambda o, i: o.predict(TEXTS[i:])[2],
             explain=lambda o, i: o.explain(TEXTS[i], target=0, steps=32, tol=1e9).attributions,
             attention=lambda o, i: o.attention(TEXTS[i]).weights,
             step_through=lambda o, i: list(o.step_through(TEXTS[i]).steps.values())),
    lm=dict(predict=lambda o, i: o.predict(TEXTS[i], no_bar=True, **GREEDY),
            beams=lambda o, i: o.predict(TEXTS[i], n_tokens=4, num_beams=3),
            stream_text=lambda o, i: list(o.stream_text(TEXTS[i], **GREEDY)),
            generate=lambda o, i: generate(o.model, encode_text(o, TEXTS[i])[None], 64,
                                           n_samples=4, temperature=0),
            perplexity=lambda o, i: torch.tensor(o.perplexity(TEXTS[i])),
            attention=lambda o, i: o.attention(TEXTS[i]).weights,
            step_through=lambda o, i: list(o.step_through(TEXTS[i]).steps.values())),
    mlm=dict(fill=lambda o, i: torch.tensor(o.fill(GAPS[i]).prob),
             attention=lambda o, i: o.attention(TEXTS[i]).weights,
             step_through=lambda o, i: list(o.step_through(TEXTS[i]).steps.values())),
    s2s=dict(predict=lambda o, i: o.predict(WORDS[i], n_tokens=6),
             beams=lambda o, i: o.predict(WORDS[i], n_tokens=4, num_beams=3),
             stream_text=lambda o, i: list(o.stream_text(WORDS[i], n_tokens=6, stop='dd')),
             attention=lambda o, i: o.attention(WORDS[i], target='abc').weights,
             encode=lambda o, i: o.encode(WORDS[i]).states,
             step_through=lambda o, i: list(o.step_through(WORDS[i], 'abc').steps.values())))

each_kind = pytest.mark.parametrize('kind', CALLS)
each_mode = pytest.mark.parametrize('training', [True,False], ids=['training','evaluation'])
each_call = pytest.mark.parametrize('kind,call', [(k, c) for k in CALLS for c in CALLS[k]])

@pytest.fixture(scope='module')
def pairs():
    "Letters and the same backwards"
    words = [''.join(random.Random(i).choices('abcd', k=1+i%6)) for i in range(60)]
    df = pd.DataFrame(dict(a=words, b=[w[::-1] for w in words]))
    return Seq2SeqDataLoaders.from_df(df, tok_tfm=CharTokenizer(), seed=0, bs=8)

@pytest.fixture
def made(request, tmp_path):
    "`made(kind, training)`: a small learner with much dropout, its model in this mode"
    def _made(kind, training=True, **kw):
        dls = request.getfixturevalue(dict(clf='dls', lm='dls_lm', mlm='dls', s2s='pairs')[kind])
        learn = quiet(FACTORIES[kind](dls, **SMALL, **DROP, path=tmp_path, **kw))
        learn.model.train(training)
        return learn
    return _made

def hooks(module): return {k:list(v) for k,v in vars(module).items() if k.endswith('_hooks')}

def seen(learn):
    "What another caller can see of a learner and of torch's flags"
    modules,mkldnn = list(learn.model.modules()), torch.backends.mkldnn
    weights = {**dict(learn.model.named_parameters()), **dict(learn.model.named_buffers())}
    def of(p): return id(p), p.stride(), p.requires_grad, p.grad is None
    return dict(training=[m.training for m in modules], hooks=[hooks(m) for m in modules],
                names=[sorted(vars(m)) for m in modules],
                weights={k:of(p) for k,p in weights.items()},
                flags=(mkldnn.enabled, torch.get_num_threads(), torch.get_default_dtype()),
                logger=learn.logger, create_mbar=learn.create_mbar, cbs=[*map(id, learn.cbs)],
                loss=learn.loss_func, metrics=list(learn.metrics), model=id(learn.model),
                dls=id(learn.dls))

def differences(learn, before): return [k for k,v in seen(learn).items() if v != before[k]]

def same(a, b):
    "Whether two answers agree, numbers up to rounding"
    if isinstance(a, Exception) or isinstance(b, Exception): return False
    if isinstance(a, torch.Tensor): return a.shape == b.shape and torch.allclose(a, b, atol=1e-5)
    if isinstance(a, (tuple,list)): return len(a) == len(b) and all(map(same, a, b))
    return a == b

# One call

class Spy(TransformerBlock):
    "A block that calls `look` whenever it computes"
    look = staticmethod(lambda: None)
    def forward(self, x, cache=None, **kwargs):
        Spy.look()
        return super().forward(x, cache=cache, **kwargs)

@each_mode
@each_call
def test_call_changes_nothing(made, kind, call, training):
    "Nor does it leave another grad mode or other weights"
    learn = made(kind, training)
    before,weights = seen(learn), [p.clone() for p in learn.model.parameters()]
    CALLS[kind][call](learn, 0)
    assert not differences(learn, before) and torch.is_grad_enabled()
    assert all(map(torch.equal, weights, learn.model.parameters()))

@each_mode
@each_call
def test_call_changes_nothing_meanwhile(made, monkeypatch, kind, call, training):
    "As a block sees it that looks at the learner's model from inside of each forward pass"
    learn,found = made(kind, training, block=Spy), []
    before = seen(learn)
    monkeypatch.setattr(Spy, 'look', lambda: found.append(differences(learn, before)))
    CALLS[kind][call](learn, 0)
    what = {o for os in found for o in os}
    assert found and not what, f'{sum(map(bool, found))} of {len(found)} times: {what}'

@each_mode
@each_call
def test_call_that_fails_changes_nothing(made, monkeypatch, kind, call, training):
    "An error comes from the second block that computes"
    learn,calls = made(kind, training, block=Spy), []
    before = seen(learn)
    def look():
        calls.append(0)
        if len(calls) == 2: raise ZeroDivisionError('halfway')
    monkeypatch.setattr(Spy, 'look', look)
    with pytest.raises(ZeroDivisionError, match='halfway'): CALLS[kind][call](learn, 0)
    assert not differences(learn, before) and torch.is_grad_enabled()

def fails_on(n):
    "A decoder that fails at its `n`th call"
    calls = []
    def decoder(toks):
        calls.append(0)
        if len(calls) == n: raise ZeroDivisionError('decoder')
        return decode_specials(toks)
    return decoder

@each_mode
@pytest.mark.parametrize('call', ['predict','stream_text','beams'])
def test_decoder_that_fails_changes_nothing(made, call, training):
    learn = made('lm', training)
    before = seen(learn)
    write = dict(predict=lambda d: learn.predict(TEXTS[0], 9, decoder=d),
                 stream_text=lambda d: list(learn.stream_text(TEXTS[0], 9, decoder=d)),
                 beams=lambda d: learn.predict(TEXTS[0], 9, num_beams=2, decoder=d))[call]
    with pytest.raises(ZeroDivisionError, match='decoder'): write(fails_on(3))
    assert not differences(learn, before)

@pytest.mark.parametrize('call', ['predict','stream_text','generate'])
def test_weights_stay_where_they_are(made, call):
    "Many long texts at once, whose steps may want another layout: the weights do not move"
    learn = made('lm')
    before = [(p.data_ptr(), p.stride()) for p in learn.model.parameters()]
    dict(predict=lambda: learn.predict('film', n_tokens=80, n_samples=5, no_bar=True),
         stream_text=lambda: list(learn.stream_text('film', n_tokens=80)),
         generate=lambda: generate(learn.model, torch.full((5,1), 2), 80))[call]()
    assert before == [(p.data_ptr(), p.stride()) for p in learn.model.parameters()]

# A stream that is not read to its end

IDS = torch.tensor([[2,9,10]])
LONG = dict(n=80, temperature=0)
STREAMS = dict(stream_text=lambda learn: learn.stream_text('the film', n_tokens=80, temperature=0),
               stream_tokens=lambda learn: stream_tokens(learn.model, IDS, **LONG),
               several=lambda learn: stream_tokens(learn.model, IDS, n_samples=6, **LONG))
each_stream = pytest.mark.parametrize('stream', STREAMS.values(), ids=STREAMS)

PAIRS = lambda learn: learn.stream_text('abcd', min_tokens=40, n_tokens=40, temperature=2., seed=0)

@each_mode
@pytest.mark.parametrize('kind,stream', [*(('lm', o) for o in STREAMS.values()), ('s2s', PAIRS)],
                         ids=[*STREAMS, 'pairs'])
def test_suspended_stream_changes_nothing(made, kind, stream, training):
    "After each of its first pieces, after it is closed, and after it is forgotten"
    learn = made(kind, training)
    before = seen(learn)
    pieces = stream(learn)
    for _ in range(4):
        next(pieces)
        assert not differences(learn, before)
    pieces.close()
    assert not differences(learn, before)
    next(pieces := stream(learn))
    del pieces
    assert not differences(learn, before)

@each_mode
@each_stream
def test_streams_side_by_side(made, stream, training):
    "Read in turns, one closed early, the other gives what it gives alone, and the model trains"
    learn = made('lm', training)
    want,x = list(stream(learn)), torch.full((1,8), 5)
    a,b,got = stream(learn), stream(learn), []
    for i,new in enumerate(a):
        got.append(new)
        if i < 5: next(b, None)
        if i == 5: b.close()
        if i < 9: assert learn.model(x).equal(learn.model(x)) != training, 'dropout'
    assert same(got, want)

# Threads

def in_threads(jobs, seconds=40.):
    "What the jobs of each list give, or their errors, a thread for each list; fails if they hang"
    results,stop = [[] for _ in jobs], threading.Event()
    def work(todo, out):
        for job in todo:
            if stop.is_set(): return
            try: out.append(job())
            except Exception as e: out.append(e)
    threads = [threading.Thread(target=work, args=o, daemon=True) for o in zip(jobs, results)]
    interval,end = sys.getswitchinterval(), time.monotonic()+seconds
    sys.setswitchinterval(1e-5)
    try:
        for t in threads: t.start()
        for t in threads: t.join(max(0., end-time.monotonic()))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
    if not any(t.is_alive() for t in threads): return results
    with suppress(Exception): faulthandler.dump_traceback(sys.__stderr__)
    hang,there = sum(t.is_alive() for t in threads), sum(map(len, results))
    pytest.fail(f'{hang} of {len(threads)} threads hang, with {there} answers')

def check_threads(learn, calls, n, seconds=40.):
    "`n` calls in each of eight threads answer as the same calls alone, and leave all as it was"
    asked = [(name, i) for name in calls for i in range(len(TEXTS))]
    want = {(name, i):calls[name](learn, i) for name,i in asked}
    before,order = seen(learn), [random.Random(t).sample(asked*n, n) for t in range(8)]
    got = in_threads([[partial(calls[name], learn, i) for name,i in o] for o in order], seconds)
    done = [(o, a) for os,answers in zip(order, got) for o,a in zip(os, answers)]
    wrong = [f'{o}: {a!r:.90}' for o,a in done if not same(a, want[o])]
    left = differences(learn, before)
    assert not (wrong or left), f'{len(wrong)} of {8*n} wrong, first {wrong[:1]}; changed: {left}'

@each_mode
@each_kind
def test_eight_threads(made, kind, training):
    "All calls of a learner, mixed; a thousand over all kinds and modes"
    check_threads(made(kind, training), CALLS[kind], 16)

@each_mode
@pytest.mark.parametrize('kind,call', [('clf','predict'), ('lm','predict'), ('lm','generate'),
                                       ('mlm','fill'), ('s2s','predict')])
def test_eight_threads_of_one_call(made, kind, call, training):
    "What servers do"
    check_threads(made(kind, training), {call:CALLS[kind][call]}, 6)

def test_threads_beside_other_learners(made):
    "A classifier answers as alone while a language model of the same process writes"
    clf,lm = made('clf', False),made('lm')
    jobs = [partial(CALLS['clf']['predict'], clf, 0), partial(CALLS['lm']['generate'], lm, 0)]*2
    want = [job() for job in jobs]
    for answers,w in zip(in_threads([[job]*6 for job in jobs]), want):
        assert all(same(a, w) for a in answers)

@pytest.mark.slow
@pytest.mark.parametrize('run', range(20))
def test_no_hang_in_twenty_runs(made, run):
    check_threads(made('clf', run%2 == 0), CALLS['clf'], 20)

# Time

@pytest.mark.slow
def test_time_of_a_single_predict(dls):
    "200 words: at most 1.5 times tokenizing and the bare forward pass; medians, taken in turns"
    text = ' '.join(random.Random(0).choices('music warm clever dull film'.split(), k=200))
    learn = quiet(transformer_classifier_learner(dls))
    learn.model.eval()
    @torch.no_grad()
    def bare(): return learn.model(encode_text(learn, text)[None])
    times = {f:[] for f in (bare, lambda: learn.predict(text))}
    for _ in range(40):
        for f,ts in times.items():
            start = time.perf_counter()
            f()
            ts.append(time.perf_counter()-start)
    least,ours = (statistics.median(ts) for ts in times.values())
    assert ours <= 1.5*least, f'{1000*ours:.2f} ms for {1000*least:.2f}'
