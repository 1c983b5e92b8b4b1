"Filters against brute force, the loop against explicit ones, `predict` on every kind of learner"
import gc, inspect, math
import numpy as np, pandas as pd, pytest, torch
from fastai.text.all import (AWD_LSTM, ColReader, CrossEntropyLossFlat, DataBlock, IndexSplitter, Learner, LMDataLoader, Numericalize, SpacyTokenizer,
    TensorText, TextBlock, TfmdLists, TK_MAJ, TK_REP, TK_UP, TK_WREP, Tokenizer, awd_lstm_lm_config, compose, defaults, language_model_learner,
    load_learner, lowercase, set_seed)
from fastprogress.fastprogress import ConsoleProgressBar
from functools import partial
from hypothesis import assume, given, settings, strategies as st
from scipy.stats import chisquare
from torch import nn
from types import SimpleNamespace
from fastai_txf.base.checks import check_ids
from fastai_txf.learn import growth
from fastai_txf.model.attention import causal_mask
from fastai_txf.all import *
from fastai_txf.model.models import TransformerLM
from fastai_txf.generate.decode import as_generator
from fastai_txf.learn.writing import SampleText

torch.set_num_threads(1)
some = settings(max_examples=30)

# Filters

@st.composite
def rows(draw, n=12):
    "Logits `(1, v)`, some of them equal, some −∞"
    vals = draw(st.lists(st.just(-math.inf) | st.integers(-8, 8) | st.integers(-512, 512).map(lambda v: v/64), min_size=2, max_size=n))
    assume(max(vals) > -math.inf)
    return torch.tensor([vals], dtype=torch.float32)

def probabilities(logits): return logits.double().softmax(-1)[0].tolist()
def kept(logits): return {i for i,v in enumerate(logits[0].tolist()) if v > -math.inf}
def assert_keeps(out, logits, want):
    "`out` is `logits` at `want` and −∞ elsewhere"
    want = want & kept(logits)
    assert kept(out) == want
    assert all(out[0,i] == logits[0,i] for i in want)

@some
@given(rows(), st.integers(1, 15))
def test_top_k(logits, k):
    "Kept is what fewer than k are larger than"
    vals = logits[0].tolist()
    assert_keeps(filter_top_k(logits, k), logits, {i for i,v in enumerate(vals) if sum(w > v for w in vals) < k})

@some
@given(rows(), st.floats(0.01, 1))
def test_top_p(logits, top_p):
    "Taken from the likeliest down until they hold `top_p`"
    probs,want,mass = probabilities(logits),set(),0.
    for i in sorted(range(len(probs)), key=lambda i: -probs[i]):
        assume(abs(mass-top_p) > 1e-5)
        if mass < top_p or top_p == 1: want.add(i)
        mass += probs[i]
    assert_keeps(filter_top_p(logits, top_p), logits, want)

@some
@given(rows(), st.floats(0, 1))
def test_min_p(logits, p):
    "The absolute and the relative threshold, each of which leaves the likeliest"
    probs = probabilities(logits)
    top = max(probs)
    assume(all(abs(q-p) > 1e-6 and abs(q-p*top) > 1e-6 or q == top for q in probs))
    assert_keeps(filter_min_p(logits, p), logits, {i for i,q in enumerate(probs) if q >= p or q == top})
    assert_keeps(filter_rel_min_p(logits, p), logits, {i for i,q in enumerate(probs) if q >= p*top})

@some
@given(rows(), st.sampled_from([1e-30, 0.01, 0.5, 1., 3., 1e30]))
def test_temperature(logits, t):
    "p^(1/T), without overflow"
    out,probs = apply_temperature(logits, t).softmax(-1)[0],np.array(probabilities(logits))
    want = (probs/probs.max()) ** (1/t)
    assert np.allclose(out.numpy(), want/want.sum(), atol=1e-4)

@some
@given(rows())
def test_greedy(logits):
    "Temperature 0 leaves the first of the largest"
    assert kept(apply_temperature(logits, 0)) == {int(logits.argmax())}
    assert sample(apply_temperature(logits, 0)).tolist() == [int(logits.argmax())]

@some
@given(rows(), st.floats(0.5, 3), st.data())
def test_rep_penalty(logits, penalty, data):
    "Each seen token once, however often it is there"
    idxs = data.draw(st.lists(st.integers(0, logits.shape[1]-1), min_size=1, max_size=8))
    want = [(v/penalty if v > 0 else v*penalty) if i in idxs else v for i,v in enumerate(logits[0].tolist())]
    assert np.allclose(penalize_repeats(logits, torch.tensor([idxs]), penalty)[0], want, atol=1e-5)

def test_barred():
    "They are out; something has to stay"
    logits = torch.randn(2, 5)
    assert kept(bar_tokens(logits, [0,3,3])) == {1,2,4} and torch.equal(bar_tokens(logits, []), logits)
    with pytest.raises(ValueError, match='all 5'): bar_tokens(logits, range(5))

@pytest.mark.parametrize('min_tokens', [0,3])
def test_barred_ids_are_checked_once(monkeypatch, min_tokens):
    "And not for each token that is written: on a GPU each look is a wait"
    model,x,asked = tiny(), torch.zeros(1, 2, dtype=torch.long), []
    def check(ids, n, what):
        if what == 'barred id': asked.append(ids)
        return check_ids(ids, n, what)
    monkeypatch.setattr('fastai_txf.generate.sampling.check_ids', check)
    kw = dict(barred=[3,4,5], stop_idx=[7], min_tokens=min_tokens, rep_penalty=1.3)
    got,beams = generate(model, x, 9, temperature=0, **kw), beam_search(model, x, 9, num_beams=1, **kw)[0]
    assert len(asked) <= 4
    want = x
    for i in range(got.shape[1]-2):
        gone = kw['barred'] + kw['stop_idx']*(i < min_tokens)
        logits = filter_logits(next_logits(model, want), want, rep_penalty=1.3, barred=gone)
        want = torch.cat([want, logits.argmax(-1, keepdim=True)], 1)
    assert got.equal(want) and beams.equal(want)

@pytest.mark.parametrize('whole', [False,True])
def test_no_step_after_all_limits(whole):
    "A text with all its tokens waits for nobody, and the others for it: the texts are those of each alone"
    taken,rows = [], [[7,8,9,9,9,9], [8,7,3,9,9,9], [5,5,5,5,3,5]]
    def steps():
        for i,ids in enumerate(zip(*rows)):
            taken.append(i)
            yield torch.tensor(ids)
    codec = SimpleNamespace(stops={3}, decode=lambda ids, decoder: ' '.join(map(str, ids)))
    end = (lambda text: text.find('5 5 5') if '5 5 5' in text else None) if whole else None
    *_,texts = growth._grow_texts(steps(), [2,6,0 if whole else 3], codec, None, end)
    assert texts == ['7 8', '8 7', '' if whole else '5 5 5'] and taken == [0,1,2]

def test_order():
    "`filter_logits` is the composition that its docstring says, row by row"
    logits,idxs = torch.randn(3, 50)*3, torch.randint(0, 50, (3,7))
    out = filter_logits(logits, idxs, temperature=1.3, top_k=20, top_p=0.95, min_p=1e-3, rel_min_p=0.02, rep_penalty=1.4, barred=[1,2])
    x = filter_min_p(bar_tokens(penalize_repeats(logits, idxs, 1.4), [1,2]), 1e-3)
    x = filter_rel_min_p(filter_top_p(filter_top_k(apply_temperature(x, 1.3), 20), 0.95), 0.02)
    assert torch.equal(out, x) and 2 < out.isfinite().sum() < 100
    assert torch.equal(filter_logits(logits).softmax(-1), apply_temperature(logits).softmax(-1))
    assert filter_logits(logits.half()).dtype == torch.float32

# Drawing

@pytest.mark.parametrize('opts', [{}, dict(temperature=0.5), dict(top_k=5), dict(top_p=0.8, temperature=2.), dict(min_p=0.05, barred=[3])], ids=str)
def test_frequencies(opts):
    "Frequencies fit the distribution, and what is out is never drawn"
    logits = filter_logits(torch.randn(1, 20, generator=torch.Generator().manual_seed(0))*1.5, **opts)
    probs = logits.softmax(-1)[0].double()
    counts = sample(logits.expand(20_000, -1), torch.Generator().manual_seed(1)).bincount(minlength=20)
    on = probs > 0
    assert not counts[~on].any()
    if on.sum() > 1: assert chisquare(counts[on], probs[on]/probs[on].sum()*20_000).pvalue > 1e-3

def test_sample_rows():
    "Each row draws from its own distribution; the generator alone decides"
    logits = torch.full((4,9), -math.inf).scatter(1, torch.tensor([[0],[8],[4],[4]]), 0.)
    assert sample(logits).tolist() == [0,8,4,4]
    g = lambda: torch.Generator().manual_seed(3)
    assert torch.equal(sample(torch.zeros(50,9), g()), sample(torch.zeros(50,9), g()))

# The loop

def tiny(config='default', **kwargs):
    "A random language model with distinct answers"
    model = TransformerLM(config, **{**dict(vocab_sz=30, d_model=32, n_heads=4, max_len=12), **kwargs}).eval()
    with torch.no_grad():
        for p in model.parameters(): p.mul_(4)
        if model.decoder.bigrams is not None: nn.init.normal_(model.decoder.bigrams.table.weight)
    return model

def banded(model, x, width):
    "All logits of one forward in which a token sees the `width` tokens up to itself: what endless positions mean"
    return model.head(model.encoder(x, mask=causal_mask(x.shape[1]).triu(1-width)))

def remembered(sl, n_prompt, width):
    "Where a text of `sl` tokens, the first `n_prompt` given, begins for a model whose learned positions end at `width`"
    start = max(0, n_prompt-width)
    for n in range(n_prompt, sl+1):
        if n-start > width: start += max(1, width//2)
    return start

def by_hand(model, x, n_prompt, width):
    "The logits of the token after `x`, from one forward"
    if model.encoder.positions.max_len is None: return banded(model, x, width)[:,-1]
    return model(x[:,remembered(x.shape[1], n_prompt, width):])[:,-1]

@pytest.mark.parametrize('config', ['default','bloem','vaswani','llama'])
def test_greedy_loop(config):
    "`generate` is the explicit loop, past `max_len` too; a batch is its rows"
    model,x = tiny(config), torch.randint(0, 30, (3,5))
    want = x
    for _ in range(25): want = torch.cat([want, by_hand(model, want, 5, 12).argmax(-1, keepdim=True)], 1)
    got = generate(model, TensorText(x), 25, temperature=0)
    assert torch.equal(got, want) and type(got) is torch.Tensor
    for i in range(3): assert torch.equal(generate(model, x[i:i+1], 25, temperature=0)[0], want[i])
    assert torch.equal(torch.stack(list(stream_tokens(model, x, 25, temperature=0)), 1), want[:,5:])

def test_sliding_window():
    "Other modules read the last `max_len` tokens anew each time"
    model,x = tiny(), torch.randint(0, 30, (3,5))
    want = x
    for _ in range(15): want = torch.cat([want, model(want[:,-7:])[:,-1].argmax(-1, keepdim=True)], 1)
    foreign = nn.Sequential(model)
    assert torch.equal(generate(foreign, x, 15, temperature=0, max_len=7), want)
    foreign.config = SimpleNamespace(max_len=7)
    assert torch.equal(generate(foreign, x, 15, temperature=0), want)
    assert not torch.equal(generate(foreign, x, 15, temperature=0, max_len=3), want)

def test_max_len():
    "Given, a token sees no further; a prompt beyond it is read to its end"
    model,x = tiny(), torch.randint(0, 30, (1,40))
    assert torch.equal(next_logits(model, x, 4), model(x[:,-4:])[:,-1])
    assert torch.equal(generate(model, x, 1, temperature=0, max_len=4)[0,-1:], banded(model, x, 4)[:,-1].argmax(-1))
    assert generate(model, x, 3).shape == (1,43)

def test_stop():
    "A row that has ended repeats its end; the loop ends with the last"
    model = Script([0,5,6,7,8,9], 30)
    x = torch.zeros(2, 1, dtype=torch.long)
    assert generate(model, x, 5, temperature=0, stop_idx=[7,20]).tolist() == [[0,5,6,7]]*2
    class Rows(nn.Module):
        def forward(self, x): return nn.functional.one_hot((x + torch.tensor([[1],[2]]))%30, 30)*99.
    assert generate(Rows(), x, 9, stop_idx=4).tolist() == [[0,1,2,3,4], [0,2,4,4,4]]
    assert generate(model, x, 0).tolist() == x.tolist()

@pytest.mark.parametrize('barred', [None, [3], torch.tensor([3,4])], ids=['none','list','tensor'])
def test_min_tokens(barred):
    "No end before so many new tokens, and as without them from then on; `n` is still the most"
    class Ends(nn.Module):
        def forward(self, x): # the end is likeliest, then 3, 4 and 5
            return torch.tensor([0.,0,0,7,6,5,9]).expand(*x.shape, 7)
    x,model = torch.zeros(2, 1, dtype=torch.long), Ends()
    best = 3 if barred is None else 5 if torch.is_tensor(barred) else 4
    for least in (0,1,4):
        for opts in (dict(temperature=0), dict(top_k=1)):
            assert generate(model, x, 9, stop_idx=6, min_tokens=least, barred=barred, **opts).tolist() == [[0]+[best]*least+[6]]*2
        found = beam_search(model, x[:1], 9, num_beams=2, stop_idx=[6,2], min_tokens=least, barred=barred)[0]
        assert all(6 in row[1+least:] and 6 not in row[1:1+least] for row in found.tolist())
    assert generate(model, x, 3, stop_idx=6, min_tokens=5, temperature=0).tolist() == [[0,3,3,3]]*2
    assert generate(model, x, 3, min_tokens=2, temperature=0).tolist() == [[0,6,6,6]]*2         # nothing ends it
    with pytest.raises(ValueError, match='all 7 tokens'): generate(model, x, 3, stop_idx=6, min_tokens=1, barred=range(6))
    for bad in (-1, 1.5, None, 'two'):
        for f in (partial(generate, idxs=x), partial(beam_search, idxs=x[:1])):
            with pytest.raises(ValueError, match=f'min_tokens={bad!r}'): f(model, n=3, stop_idx=6, min_tokens=bad)

@pytest.mark.parametrize('f', [partial(generate, temperature=0), lambda *args, **kw: beam_search(*args, num_beams=2, **kw)[0]], ids=['generate','beam_search'])
def test_ids_in_any_form(f):
    "A set, an iterator, an array; a mask and what is no whole number are refused, not cut"
    model,x = tiny(), torch.zeros(1, 2, dtype=torch.long)
    first = f(model, x, 1)[0,-1].item()
    want = f(model, x, 6, barred=[first,3], stop_idx=[7,2], min_tokens=1)
    assert first not in want[:,2:]
    for form in (set, iter, np.array, torch.tensor, lambda ids: pd.Series(ids, index=[5,6])): assert f(model, x, 6, barred=form([first,3]), stop_idx=form([7,2]), min_tokens=1).equal(want)
    for k in ('barred','stop_idx'):
        for bad,says in ((torch.arange(30) == 3, r'mask\.nonzero'), ([True,False], r'mask\.nonzero'), ([3,2.5], 'not 2.5'), (2.5, 'not 2.5'), ('a', "'a' is no whole number")):
            with pytest.raises(TypeError, match=f'{k}: id.*{says}'): f(model, x, 2, **{k:bad})
    with pytest.raises(TypeError, match='token ids of torch.bool'): f(model, x == 0, 2)
    with pytest.raises(TypeError, match='barred ids of torch.bool'): bar_tokens(torch.randn(2, 5), torch.arange(5) > 2)

def test_sources_are_whole_numbers():
    model = Seq2SeqTransformer(vocab_sz=30, d_model=16, n_heads=2, n_layers=1)
    with pytest.raises(TypeError, match='src: ids of torch.float32: give whole numbers, not 4.5'): generate(model, torch.tensor([[2]]), 2, src=[[2,4.5]])

def test_leaves_no_trace():
    "Modes, gradients and torch's random numbers are as before, even if the stream is abandoned"
    model,x = tiny(p=0.5).train(), torch.randint(0, 30, (2,3))
    model.encoder.blocks[0].eval()
    modes,state = [m.training for m in model.modules()], torch.get_rng_state()
    for i,o in enumerate(stream_tokens(model, x, 9, seed=1)):
        assert torch.is_grad_enabled() and not o.requires_grad
        if i == 3: break
    del o; gc.collect()
    assert [m.training for m in model.modules()] == modes and torch.equal(torch.get_rng_state(), state)

def test_seed():
    "Equal seeds, equal samples: a number or a generator; without one torch's own decides"
    model,x = tiny(), torch.randint(0, 30, (2,3))
    run = lambda seed=None: generate(model, x, 10, seed=seed, temperature=3.).tolist()
    assert run(1) == run(np.int64(1)) == run(torch.Generator().manual_seed(1)) != run(2)
    torch.manual_seed(5); a = run()
    torch.manual_seed(5); assert a == run()

@pytest.mark.parametrize('opts,says', [(dict(temperature=-1.), 'temperature=-1.0'), (dict(temperature=math.nan), 'temperature=nan'), (dict(temperature=math.inf), 'temperature=inf'),
    (dict(top_p=0), 'top_p=0'), (dict(top_p=2), 'top_p=2'), (dict(top_k=0), 'top_k=0'), (dict(top_k=2.5), 'top_k=2.5'), (dict(min_p=-.1), 'min_p=-0.1'), (dict(min_p=2), 'min_p=2'),
    (dict(rel_min_p=1.5), 'rel_min_p=1.5'), (dict(rep_penalty=0), 'rep_penalty=0'), (dict(max_len=0), 'max_len=0'),
    (dict(top_k=True), 'top_k=True is out'), (dict(seed=2**64), 'seed=18446744073709551616 is out'), (dict(seed=-2**63-1), 'seed=-92'), (dict(seed=True), 'seed=True')], ids=lambda o: o if isinstance(o, str) else '')
def test_out_of_range(opts, says):
    "A ValueError that names the value, before anything is generated"
    with pytest.raises(ValueError, match=says): stream_tokens(tiny(), torch.zeros(1,1).long(), 0, **opts)

def test_wrong_calls():
    "Misspelt options, shapes that are no batch of texts, models that are no language models, diverged ones"
    model,x = tiny(), torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(TypeError, match='topk'): stream_tokens(model, x, 1, topk=3)
    with pytest.raises(ValueError, match='n=-1'): generate(model, x, -1)
    for bad in (x[0], x[:,:0]):
        with pytest.raises(ValueError, match=r'idxs\[None\]'): generate(model, bad, 1)
    with pytest.raises(ValueError, match=r'\(1, 2\)'): generate(nn.Identity(), x, 1)
    with torch.no_grad(): model.encoder.emb.weight.fill_(math.nan)
    assert next_logits(model, x).isnan().all()                              # the loop looks at them
    with pytest.raises(ValueError, match='diverged'): generate(model, x, 1)

def test_signatures():
    "Every option shows"
    for f in (stream_tokens, generate, predict):
        names = inspect.signature(f).parameters
        assert {'temperature','top_k','top_p','min_p','rel_min_p','rep_penalty','seed','max_len'} <= set(names) and 'kwargs' not in names
    fastais = 'text n_words no_unk temperature min_p no_bar decoder only_last_word'.split()
    assert list(inspect.signature(predict).parameters)[1:9] == fastais

def test_generator_of_another_device():
    "A seed that the model's device cannot draw from is named with one that it can"
    with pytest.raises(ValueError, match=r"on cpu, and the model is on cuda:0: .*Generator\('cuda'\)"):
        as_generator(torch.Generator(), torch.device('cuda:0'))
    g = torch.Generator()
    assert as_generator(g, torch.device('cpu')) is g

@pytest.mark.cuda
def test_cuda():
    "The same text on the device"
    model,x = tiny(), torch.randint(0, 30, (2,3))
    want = generate(model, x, 10, temperature=0)
    model.cuda()
    assert torch.equal(generate(model, x, 10, temperature=0).cpu(), want)
    a,b = [generate(model, x, 10, seed=1, temperature=3.) for _ in range(2)]
    assert a.is_cuda and torch.equal(a, b)

# Decoding

low = st.text('abcde', min_size=2, max_size=6).filter(lambda w: not any(c*3 in w for c in w))
word = low | low.map(str.capitalize) | low.map(str.upper) | st.sampled_from([',','.','?','…','12','(']) | st.builds(lambda c,n: c*n, st.sampled_from('xyz!-='), st.integers(3, 90))
piece = st.builds(lambda w,n: ' '.join([w]*n), word, st.sampled_from([1,1,1,2,3,7]))

@some
@given(st.lists(piece, min_size=1, max_size=12).map(' '.join))
def test_round_trip(text):
    "fastai's rules, undone"
    toks = compose(*defaults.text_proc_rules)(text).split()
    assert ' '.join(decode_specials(toks[1:])) == text

specials = [TK_MAJ,TK_UP,TK_REP,TK_WREP]

@some
@given(st.lists(st.sampled_from([*specials,'2','3','10000000000','²','a','bc','▁▁',''])))
def test_malformed(toks):
    "Any tokens decode to text of bounded length, no word lost"
    out = decode_specials(toks)
    assert not set(out) & set(specials) and len(out) <= 3*len(toks)
    assert ''.join(out).lower().count('bc') >= toks.count('bc')

def test_decode():
    "What comes after a repetition is still there; a long run of marks needs no stack; spaces in tokens come back"
    dec = lambda s: decode_specials(s.split(' '))
    assert dec('xxrep 3 ! so xxwrep 2 ha said xxmaj bo') == ['!!!','so','ha','ha','said','Bo']
    assert dec(' '.join(['xxmaj']*5000 + ['a'])) == ['A']
    assert dec('xxup nasa \n▁▁ xxwrep 3') == ['NASA','\n  ']
    assert dec('xxmaj xxunk xxup xxunk xxmaj bo') == ['xxunk','xxunk','Bo']

# `predict`

texts = ['I think its a very good film. Very, very good!!!', 'It was a bad idea to watch IT at night.', 'The cat sat on the mat.']*6

def lm_dls(texts=texts, bs=4, seq_len=8, get_x=ColReader('text'), **kwargs):
    "Loaders of a language model, made in this process"
    block = TextBlock.from_df('text', is_lm=True, min_freq=1, n_workers=0, seq_len=seq_len, **kwargs)
    return DataBlock(block, get_x=get_x, splitter=IndexSplitter(range(6))).dataloaders(pd.DataFrame(dict(text=texts)), bs=bs)

@pytest.fixture(scope='module')
def dls(): return lm_dls()

class Script(nn.Module):
    "After `i` tokens comes `script[i]`, whatever they are"
    def __init__(self, script, vocab_sz):
        super().__init__()
        self.script,self.vocab_sz,self.lens,self.dummy = script,vocab_sz,[],nn.Parameter(torch.zeros(1))
    def forward(self, x):
        self.lens.append(x.shape[1])
        nxt = [self.script[min(i, len(self.script)-1)] for i in range(1, x.shape[1]+1)]
        return nn.functional.one_hot(torch.tensor(nxt), self.vocab_sz).float().expand(len(x), -1, -1)*20

def scripted(dls, text, model=Script):
    "A plain learner whose model recites `text`, in tokens"
    return Learner(dls, model([dls.vocab.index(t) for t in text.split()], len(dls.vocab)), loss_func=CrossEntropyLossFlat())

@pytest.mark.parametrize('n,want', [(0,'It was'), (1,'It was a'), (2,'It was a very'), (3,'It was a very , very'), (4,'It was a very , very !!! Good'),
                                    (6,'It was a very , very !!! Good bad bad'), (50,'It was a very , very !!! Good bad bad bad .')])
def test_words(dls, n, want):
    "Punctuation and marks are no words, a repetition is several, and `xxbos` ends the text"
    learn = scripted(dls, 'xxbos xxmaj it was a very , very xxrep 3 ! xxmaj good xxwrep 3 bad . xxbos xxmaj the cat')
    assert predict(learn, 'It was', n, temperature=0) == want

@pytest.mark.parametrize('n,want', [(0,'It was'), (1,'It was a'), (4,'It was a very , very'), (5,'It was a very , very'), (6,'It was a very , very'),
                                    (7,'It was a very , very !!!'), (99,'It was a very , very !!!')])
def test_tokens(dls, n, want):
    "`n_tokens` counts them all; a mark without its word stays out, `xxeos` ends the text"
    learn = scripted(dls, 'xxbos xxmaj it was a very , very xxrep 3 ! xxeos the')
    taken = []
    def decoder(toks):
        taken[:] = toks
        return decode_specials(toks)
    assert predict(learn, 'It was', n_tokens=n, temperature=0, decoder=decoder) == want
    assert len(taken) == min(n, 7)

def test_barred_text(dls):
    "What is no text never comes; `no_unk=False` lets `xxunk` through, never padding"
    rng = torch.Generator().manual_seed(0)
    class Wild(nn.Module):
        def forward(self, x): return torch.randn(*x.shape, len(dls.vocab), generator=rng)*2
    learn = Learner(dls, Wild(), loss_func=CrossEntropyLossFlat())
    out = ' '.join(predict(learn, 'It was', n_tokens=60, seed=s) for s in range(12))
    assert not [w for w in out.split() if w.startswith('xx')]
    out = ' '.join(predict(learn, 'It was', n_tokens=60, seed=s, no_unk=False) for s in range(12))
    assert 'xxunk' in out and not {'xxpad','xxfake','xxbos','xxeos'} & set(out.split())
    assert max(len(predict(learn, '', n_words=3, seed=s).split()) for s in range(5)) >= 3

def test_no_end(dls):
    "A text that makes no words comes to an end, after ten marks in a row"
    learn = scripted(dls, 'xxbos . .')
    assert predict(learn, '', 3, temperature=0).split() == ['.']*10

def test_prompts(dls):
    "Empty, unknown words, blanks, longer than the model reads: kept as typed, and the context is never dropped"
    learn = scripted(dls, 'xxbos' + ' a very good'*40)
    for only_last in (False, True):
        learn.model.lens.clear()
        assert predict(learn, 'Zyx qwq', n_tokens=2, temperature=0, only_last_word=only_last) == 'Zyx qwq a very'
        assert learn.model.lens == [4,5]                                    # xxbos xxmaj xxunk xxunk
    assert predict(learn, '', 2, temperature=0) == 'a very'
    assert predict(learn, 'It was ', 1, temperature=0) == 'It was a'
    assert predict(learn, '  ', 1, temperature=0) == '  a'
    for bad in (None, 3, [3]):
        with pytest.raises(TypeError, match=f'{bad}' if bad != [3] else 'number 0'): predict(learn, bad)
    assert predict(learn, ['a'], 2, temperature=0) == ['a very good']
    learn.model.lens.clear()
    predict(learn, 'a cat '*50, 3, max_len=7)
    assert set(learn.model.lens) == {7}

def test_long_prompt(dls):
    "Beyond `max_len`, with every kind of positions"
    for positions in ('learned','rotary','alibi','sinusoidal'):
        learn = Learner(dls, TransformerLM(vocab_sz=len(dls.vocab), d_model=16, n_heads=2, max_len=8, positions=positions), loss_func=CrossEntropyLossFlat())
        out = predict(learn, 'the cat sat on the mat '*10, n_tokens=5, seed=1)
        assert out.startswith('the cat sat on the mat '*10)

@pytest.mark.parametrize('opts,says', [(dict(n_words=-1), 'n_words=-1'), (dict(n_words=1.5), 'n_words=1.5'), (dict(n_tokens=-2), 'n_tokens=-2'),
    (dict(temperature=-1, n_words=0), 'temperature=-1'), (dict(top_p=0), 'top_p=0'), (dict(top_p=2), 'top_p=2'), (dict(n_words='3'), "n_words='3'"),
    (dict(seed='a'), "seed='a'")], ids=lambda o: o if isinstance(o, str) else '')
def test_predict_range(dls, opts, says):
    "Named with the remedy, even where nothing would be generated"
    with pytest.raises(ValueError, match=says): predict(scripted(dls, 'xxbos a'), 'It', **opts)
    with pytest.raises(TypeError, match='num_words'): predict(scripted(dls, 'xxbos a'), 'It', num_words=1)

class Own(nn.Module):
    "A user's own language model: a GRU"
    def __init__(self, vocab_sz):
        super().__init__()
        self.emb,self.rnn,self.out = nn.Embedding(vocab_sz, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, vocab_sz)
    def forward(self, x): return self.out(self.rnn(self.emb(x))[0])

def quiet(learn, epochs, lr):
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs, lr)
    return learn

@pytest.fixture(scope='module')
def learners(dls):
    "Each kind of learner, trained until it knows the three texts"
    set_seed(0)
    n,loss = len(dls.vocab), CrossEntropyLossFlat()
    own = quiet(Learner(dls, Own(n), loss_func=loss), 8, 2e-2)
    ours = quiet(Learner(dls, TransformerLM(vocab_sz=n, d_model=48, n_heads=4, p=0., emb_p=0., max_len=16), loss_func=loss), 30, 5e-3)
    config = {**awd_lstm_lm_config, 'emb_sz':48, 'n_hid':48, 'n_layers':2}
    awd = quiet(language_model_learner(dls, AWD_LSTM, pretrained=False, drop_mult=0.05, config=config), 15, 4e-2)
    return dict(own=own, ours=ours, awd=awd)

@pytest.mark.parametrize('kind', ['own','ours','awd'])
def test_kinds(learners, kind):
    "The learned text comes out, and a seed repeats a sample"
    learn = learners[kind]
    assert predict(learn, 'It was', 7, temperature=0) == 'It was a bad idea to watch IT at'
    assert predict(learn, 'The cat sat', 99, temperature=0) == 'The cat sat on the mat .'
    a,b,c = [predict(learn, 'It', n_tokens=20, temperature=4., top_k=30, seed=s) for s in (1,1,2)]
    assert a == b != c
    learn.predict = partial(predict, learn)
    assert learn.predict('The cat', temperature=0.01) == 'The cat sat'

def test_awd(learners, dls):
    "fastai's model reads the whole text from a clean state, whatever it read before; batch and single agree"
    model = learners['awd'].model
    x = torch.randint(9, len(dls.vocab)-8, (3,5), device=next(model.parameters()).device)
    want = x
    for _ in range(6):
        model.eval(); model.reset()
        with torch.no_grad(): want = torch.cat([want, model(want)[0][:,-1].argmax(-1, keepdim=True)], 1)
    model.train()
    assert torch.equal(generate(model, x, 6, temperature=0), want) and model.training
    for i in range(3): assert torch.equal(generate(model, x[i:i+1], 6, temperature=0)[0], want[i])
    quiet(learners['awd'], 1, 1e-5)                                         # still trains

def test_exported(learners, tmp_path):
    "A learner that comes back from a file says the same"
    learn = learners['own']
    learn.__dict__.pop('predict', None)
    learn.export(tmp_path/'lm.pkl')
    back = load_learner(tmp_path/'lm.pkl')
    assert predict(back, 'It was', 7, temperature=0) == predict(learn, 'It was', 7, temperature=0)

class Chars:
    "Characters as tokens"
    def __init__(self, **kwargs): pass
    def __call__(self, items): return (list(str(t)) for t in items)

def test_characters():
    "Characters join without spaces, and a word is complete when the next space has come"
    dls = lm_dls(tok=Chars(), rules=[], sep='')
    text = 'It was a bad idea.'
    learn = Learner(dls, Script([dls.vocab.index('▁' if c==' ' else c) for c in text], len(dls.vocab)), loss_func=CrossEntropyLossFlat())
    for n,want in ((0,'It w'), (1,'It was'), (2,'It was a'), (4,'It was a bad idea....')): assert predict(learn, 'It w', n, temperature=0)[:len(want)] == want
    assert predict(learn, 'It w', 2, temperature=0) == 'It was a'
    assert predict(learn, 'It ', n_tokens=5, temperature=0) == 'It was a'
    assert predict(learn, 'I', temperature=0) == 'It'

def test_no_start():
    "An empty prompt is an error where no text begins with `xxbos`, in the vocabulary or not"
    for vocab in (['xxunk','xxpad',*'▁Itwas'], ['xxunk','xxpad','xxbos',*'▁Itwas']):
        dls = lm_dls(tok=Chars(), rules=[], sep='', vocab=vocab)
        learn = scripted(dls, 'a a')
        with pytest.raises(ValueError, match='give a first word .LMDataLoaders'): predict(learn, ['I',''])
        with pytest.raises(ValueError, match='give a first word'): learn.fit(1, cbs=SampleText())
    assert predict(scripted(dls, 'I t ▁ w a s ▁'), 'It', temperature=0) == 'It was'

def test_end_rule():
    "An end mark that the rules add to a text does not end the prompt"
    rules = [o for o in defaults.text_proc_rules if o is not lowercase] + [partial(lowercase, add_eos=True)]
    dls = lm_dls(rules=rules)
    learn = scripted(dls, 'xxbos xxmaj it was a bad')
    assert predict(learn, 'It was', 2, temperature=0) == 'It was a bad'
    assert learn.model.lens == [4,5] and dls.train_ds[0][0][-1] == dls.vocab.index('xxeos')

def test_transformed_lists(dls):
    "Loaders of a single `TfmdLists`"
    tok = Tokenizer(SpacyTokenizer())
    tls = TfmdLists(texts, [tok, Numericalize(list(dls.vocab))], splits=[range(12), range(12,18)])
    dls2 = tls.dataloaders(bs=2, seq_len=8, dl_type=LMDataLoader)
    assert predict(scripted(dls2, 'xxbos xxmaj it was a bad'), 'It was', 2, temperature=0) == 'It was a bad'

def test_bar(dls, monkeypatch):
    "A bar for those who have waited, if wanted, and gone in the end"
    seen,gone = [],[]
    class Bar(ConsoleProgressBar):
        def on_update(self, val, text): seen.append((val,self.total))
        def on_iter_end(self): gone.append(True)
    monkeypatch.setitem(predict.__globals__, 'progress_bar', Bar)
    learn = scripted(dls, 'xxbos a very good xxbos')
    def shown(after, text, n, **kwargs):
        monkeypatch.setitem(predict.__globals__, '_bar_after', after)
        seen.clear(); gone.clear()
        predict(learn, text, n_tokens=n, **kwargs)
        return bool(seen)
    assert not shown(1e9, 'It', 2) and not shown(-1, 'It', 2, no_bar=True)
    with learn.no_bar(): assert not shown(-1, 'It', 2)
    for after in (0,-1): assert shown(after, ['a','It'], 2) and seen[-1] == (2,2) and gone
    assert shown(-1, 'It', 200) and seen[-1][1] == 200 and gone             # ends after two tokens
