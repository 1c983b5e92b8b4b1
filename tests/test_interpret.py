"Looking inside: captured attention against explicit loops, attributions that add up, curves, tables, pictures, odd input"
import copy, dataclasses, html, math, random, re, time, warnings
import numpy as np, pandas as pd, pytest, torch, torch.nn as nn
from types import SimpleNamespace
from fastai.text.all import BaseTokenizer, CategoryBlock, Learner, SentencePieceTokenizer, load_learner
from hypothesis import given, settings, strategies as st
from fastai_txf.base.shadow import shadow
import fastai_txf.explain.attribution as attribution
from fastai_txf.model.attention import record_attention, SelfAttention
from fastai_txf.generate.cache import KVCache
from fastai_txf.text.special import text_vocab
from fastai_txf.all import *
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.explain.spans import _word_starts
from fastai_txf.model.config import make_config
from fastai_txf.model.stack import TransformerEncoder
from fastai_txf.model.models import Seq2SeqTransformer, TransformerClassifier, TransformerLM
from fastai_txf.text.pairs import Seq2SeqDataLoaders
from fastai_txf.model.positions import POSITIONS
from fastai_txf.learn.seq2seq import transformer_seq2seq_learner
from fastai_txf.text.tokens import BPETokenizer, CharTokenizer
from fixtures import SMALL, df, dls, dls_lm, dls_multi, dls_reg, make, make_dls, no_pictures_left, quiet
from test_properties import build, configs

torch.set_num_threads(1)
some = settings(max_examples=15)
TEXT = 'music warm clever dull film with it'
LONG = ' '.join(['music warm clever dull film'.split()[i%5] for i in range(19)]) # 20 tokens with xxbos: windows of 7, 7 and 6

def close(a, b, eps=1e-6): torch.testing.assert_close(a, b, atol=eps, rtol=0)

@pytest.fixture(scope='module')
def clf(dls): return trained(transformer_classifier_learner(dls, **SMALL))

@pytest.fixture(scope='module')
def letters(df):
    "A classifier that reads characters and nothing before them"
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', tok_tfm=CharTokenizer(), num_workers=0, bs=8)
    return quiet(transformer_classifier_learner(dls, **SMALL))

@pytest.fixture(scope='module')
def pairs():
    "Letters and the same backwards"
    words = [''.join(random.Random(i).choices('abcd', k=1+i%5)) for i in range(60)]
    return Seq2SeqDataLoaders.from_df(pd.DataFrame(dict(a=words, b=[w[::-1] for w in words])), tok_tfm=CharTokenizer(), seed=0, bs=8)

@pytest.fixture(scope='module')
def s2s(pairs): return trained(transformer_seq2seq_learner(pairs, **SMALL))

def trained(learn):
    "A little, so that no weights are equal by accident"
    quiet(learn).fit(2, 1e-2)
    return learn

def hooks(model): return sum(len(m._forward_hooks)+len(m._forward_pre_hooks) for m in model.modules())

# Attention

def explicit_weights(attn, x, mask):
    "Softmax over allowed keys, head by head and query by query, from the layer's own projections"
    bs,sl,_ = x.shape
    n,n_kv,_ = attn.heads
    d = attn.widths[0]//n
    q,k,_ = attn.qkv(x).view(bs, sl, sum(attn.heads), d).transpose(1, 2).split(attn.heads, 1)
    q,k = attn.positions.rotate(attn.q_norm(q), attn.k_norm(k), torch.arange(sl))
    bias = attn.positions.bias(torch.arange(sl), torch.arange(sl))
    out = x.new_zeros(bs, n, sl, sl)
    for b in range(bs):
        for h in range(n):
            for i in range(sl):
                scores = {j:(q[b,h,i] @ k[b,h//(n//n_kv),j]).item()/math.sqrt(d) + (0. if bias is None else bias[h,i,j].item())
                          for j in range(sl) if mask[b,j] and (j <= i or not attn.causal)}
                top = max(scores.values(), default=0.)
                total = sum(math.exp(s-top) for s in scores.values())
                for j,s in scores.items(): out[b,h,i,j] = math.exp(s-top)/total
    return out

@some
@given(configs(), st.booleans(), st.integers(0,3))
def test_weights_are_explicit(config, causal, n_pad):
    "All modes, grouped heads, position schemes, causal and not: what is noted is the softmax, and the output is bit for bit the same"
    # float64: two orders of adding up a score in float32 differ by more than 1e-6 where it is large
    model = build(TransformerEncoder, dataclasses.replace(config, causal=causal)).double()
    x = torch.randint(2, 30, (2,7))
    if n_pad: x[1,-n_pad:] = 1
    inputs = {}
    layers = [m for m in model.modules() if isinstance(m, SelfAttention)]
    handles = [m.register_forward_hook(lambda m, args, out: inputs.update({m:args[0]})) for m in layers]
    before = model(x)
    with record_attention(model) as seen: during = model(x)
    after = model(x)
    for h in handles: h.remove()
    assert during.equal(before) and after.equal(before) and hooks(model) == 0
    real = torch.ones_like(x, dtype=torch.bool) if causal else x != 1
    for m in layers:
        (_,w), = seen[m]
        close(w, explicit_weights(m, inputs[m], real))
        close(w.sum(-1), torch.ones(2, config.n_heads, 7).double())

@pytest.mark.parametrize('mode,n_kv', [('standard',None), ('standard',1), ('standard',2), ('wide',None), ('wide',2), ('narrow',None)])
@pytest.mark.parametrize('positions', POSITIONS)
@pytest.mark.parametrize('causal', [False,True])
def test_weights_every_combination(mode, n_kv, positions, causal):
    "The same without a draw: each mode with each scheme"
    torch.manual_seed(0)
    model = TransformerEncoder(vocab_sz=30, d_model=16, n_heads=4, n_layers=1, mode=mode, n_kv_heads=n_kv, positions=positions, causal=causal).eval().double()
    for p in model.parameters(): p.data += 0.2*torch.randn_like(p)
    attn,x,inputs = model.blocks[0].attn.fn, torch.randint(2, 30, (1,5)), []
    h = attn.register_forward_hook(lambda m, args, out: inputs.append(args[0]))
    with record_attention(attn) as seen: model(x)
    h.remove()
    close(seen[attn][0][1], explicit_weights(attn, inputs[0], torch.ones(1,5, dtype=torch.bool)))

def test_recording_ends():
    "Hooks are gone after an error, training modes and random numbers are as they were, and a cache is refused"
    model = TransformerLM(vocab_sz=30, d_model=16, n_heads=2, n_layers=2, attn_p=0.5, p=0.)
    x = torch.randint(2, 30, (1,6))
    torch.manual_seed(1); want = model(x)
    torch.manual_seed(1)
    with record_attention(model) as seen: got = model(x)
    assert got.equal(want) and all(m.training for m in model.modules())
    close(torch.stack([w.sum(-1) for (_,w), in seen.values()]), torch.ones(2,1,2,6))
    with pytest.raises(ZeroDivisionError):
        with record_attention(model): 1/0
    assert hooks(model) == 0
    with pytest.raises(ValueError, match='cache'), record_attention(model): model(x, KVCache())
    assert hooks(model) == 0
    with pytest.raises(TypeError, match='Linear has no attention'), record_attention(nn.Linear(2,2)): pass

@pytest.mark.parametrize('kind', ['clf','lm','multi','reg'])
def test_attention_of_learners(make, kind):
    "Tokens on both axes, rows that sum to 1, an untouched model"
    learn = make(kind)
    learn.model.train()
    before = copy.deepcopy(learn.model.state_dict())
    a = learn.attention(TEXT)
    assert a.queries == a.keys == ['xxbos', *TEXT.split()] and a.weights.shape == (2,2,8,8)
    close(a.weights.sum(-1), torch.ones(2,2,8))
    if kind == 'lm': assert (a.weights.triu(1) == 0).all()
    assert hooks(learn.model) == 0 and all(m.training for m in learn.model.modules())
    assert all(before[k].equal(v) for k,v in learn.model.state_dict().items())

@pytest.mark.filterwarnings('error:.*__array__')
def test_pictures_of_arrays(clf):
    "matplotlib gets arrays: numpy 2 warns of the conversion of tensors"
    clf.show_attention(TEXT)
    plot_positions('sinusoidal', n=20)

def test_pictures_of_weights_in_bfloat16(make, pairs):
    "numpy has no such numbers"
    learn,s2s = make(), quiet(transformer_seq2seq_learner(pairs, **SMALL))
    for o in (learn,s2s): o.model.bfloat16()
    a = learn.attention(TEXT)
    close(a.weights.sum(-1), torch.ones(2,2,8), eps=0.02)
    assert len(a.look(1).values) == 8 and a.plot().shape == (2,2) and a.rollout().plot().shape == (1,1)
    assert s2s.attention('abc', 'cba').plot().shape == (2,2)
    c = deletion_curve(learn, [TEXT], n_draws=2)
    assert abs(c.attributed[0,0] - float(learn.predict(TEXT)[2].max())) < 0.01

def test_predictions_are_the_same(clf):
    want = clf.predict(TEXT)[2]
    clf.show_attention(TEXT); clf.explain(TEXT); clf.step_through(TEXT)
    assert clf.predict(TEXT)[2].equal(want)

def test_windows(make):
    "A text beyond `max_len`: each window's weights are those of the window alone"
    learn,text = make('clf', max_len=8), LONG
    parts = [learn.attention(text, window=i) for i in range(3)]
    assert [len(p.keys) for p in parts] == [7,7,6] and sum((p.keys for p in parts), []) == ['xxbos', *text.split()]
    assert parts[1].title == 'attention, window 1 of 3'
    ids = torch.tensor([[text_vocab(learn.dls).index(t) for t in parts[1].keys]]).to(next(learn.model.parameters()).device)
    with record_attention(learn.model.eval()) as seen: learn.model.encoder(ids)
    close(parts[1].weights, torch.stack([w[0] for (_,w), in seen.values()]).cpu())
    with pytest.raises(ValueError, match='window=3: there are 3'): learn.attention(text, window=3)

@pytest.mark.parametrize('positions', POSITIONS)
def test_a_language_model_slides(make, positions):
    "A text beyond `max_len`: the weights of the whole text, as the model computes them; an error where positions end"
    learn = make('lm', max_len=8, positions=positions)
    if learn.model.encoder.positions.max_len is not None:
        with pytest.raises(ValueError, match='20 tokens, but learned positions end'): learn.attention(LONG)
        return
    a,s = learn.attention(LONG), learn.step_through(LONG)
    assert a.queries == a.keys == s.tokens == ['xxbos', *LONG.split()] and a.title == 'attention'
    assert a.weights.equal(torch.cat([s[f'block {i}, attn: weights'] for i in range(2)]))
    assert a.weights[:,:,19].count_nonzero(-1).eq(8).all()
    assert learn.attention('warm xxpad film').weights.shape == (2,2,4,4)            # padding in a text is read, too
    assert learn.step_through('warm xxpad film').tokens == ['xxbos','warm','xxpad','film']
    with pytest.raises(ValueError, match='window=1: a language model reads a text in one piece'): learn.show_attention(LONG, window=1)

def test_pairs(s2s):
    "Cross-attention is that of `encode`; the decoder sees no later token; without a target the model writes its own"
    a = s2s.attention('abcd', 'dcba')
    e = s2s.encode('abcd', 'dcba')
    assert (a.queries, a.keys) == (e.target, e.tokens) and a.weights.shape == (2,2,5,6)
    close(a.weights[-1], e.weights)
    own = s2s.attention('abcd', 'dcba', part='decoder')
    assert own.queries[0] == 'xxbos' and (own.weights.triu(1) == 0).all()
    assert s2s.attention('abcd').queries == [*s2s.predict('abcd'), 'xxeos']
    assert s2s.attention('abcd', part='encoder').weights.shape == (2,2,6,6)
    assert s2s.attention('abcd', '').queries == ['xxeos']
    with pytest.raises(ValueError, match='from one text to another'): a.rollout()

def test_long_source(pairs):
    "A source in windows: every token of the target can look at all of it"
    learn = quiet(transformer_seq2seq_learner(pairs, **SMALL, max_len=6))
    a = learn.attention('abcdabcdab', 'ba')
    assert len(a.keys) == 12 and a.weights.shape == (2,2,3,12)
    close(a.weights.sum(-1), torch.ones(2,2,3))
    assert len(learn.attention('abcdabcdab', part='encoder', window=1).keys) == 6
    for kw in (dict(window=1), dict(window=7, part='decoder'), dict(window=-1, part='cross')):
        with pytest.raises(ValueError, match="window=.*leave it out.*part='encoder'"): learn.attention('abcdabcdab', 'ba', **kw)

def test_rollout():
    "By hand for two layers; rows sum to 1; what no head looks at arrives by the residual connection alone"
    torch.manual_seed(0)
    w = torch.rand(3,2,5,5).softmax(-1)
    out = attention_rollout(w)
    want = torch.eye(5)
    for layer in w:
        mixed = sum(layer)/2
        want = (mixed @ want + want)/2
    close(out, want)
    close(out.sum(-1), torch.ones(5))
    close(attention_rollout(torch.eye(4).expand(2,2,4,4)), torch.eye(4))
    with pytest.raises(ValueError, match='shape'): attention_rollout(torch.rand(2,2,3,4))
    with pytest.raises(ValueError, match='residual=1'): attention_rollout(w, 1)

# Pictures

def overlaps(texts, fig):
    "Pairs of visible labels whose boxes overlap"
    boxes = [t.get_window_extent(fig.canvas.get_renderer()) for t in texts if t.get_visible() and t.get_text().strip()]
    return sum(a.overlaps(b) for a,b in zip(boxes, boxes[1:]))

@pytest.mark.parametrize('n', [1,4,300])
@pytest.mark.parametrize('chosen', [{}, dict(layer=1, head=0)])
def test_heat_maps(make, n, chosen):
    "Every map has the right weights, labels that do not touch, a title and a colour scale; none is wider than a notebook"
    learn = make('clf', n_heads=4)
    text = ' '.join(random.Random(0).choices(['music','extraordinarily','warm','of'], k=n))
    a = learn.attention(text)
    axs = a.plot(**chosen)
    fig = axs.flat[0].figure
    fig.canvas.draw()
    assert axs.shape == ((1,1) if chosen else (2,4)) and fig.get_size_inches()[0] <= 11 and fig._suptitle.get_text() == 'attention'
    shown = axs.flat[0].images[0].get_array()
    assert np.allclose(shown, a.weights[1,0] if chosen else a.weights[0,0])
    assert len(fig.axes) == axs.size + 1                                    # and the colour bar
    for ax in (axs[-1,0], axs[0,0]):
        assert overlaps(ax.get_yticklabels(), fig) == 0 and overlaps(ax.get_xticklabels(), fig) == 0
    first = axs[-1,0].get_xticklabels()
    assert first[0].get_text() == 'xxbos' and len(first) <= 45

def test_odd_tokens():
    "Dollars, newlines and angle brackets are shown as they are"
    a = Attention(torch.full((1,1,3,3), 1/3), ['$x$','\n','<b>'], ['$x$','\n','<b>'])
    ax = a.plot()[0,0]
    ax.figure.canvas.draw()
    assert [t.get_text() for t in ax.get_xticklabels()] == [r'\$x\$','⏎','<b>']
    assert '&lt;b&gt;' in a.look(0)._repr_html_() and '<b></b>' not in a.look(0)._repr_html_().replace('<b>what', '')

def test_choice(clf):
    for kw,match in ((dict(layer=2),'layer=2: there are 2'), (dict(head='x'),"head='x'"), (dict(part='cross'),"part='cross'"), (dict(target='x'),"target='x'")):
        with pytest.raises(ValueError, match=match): clf.show_attention(TEXT, **kw)
    assert clf.attention(TEXT).plot(layer=-1).shape == (1,2)
    with pytest.raises(TypeError, match='7 is a int'): clf.show_attention(7)

def test_look(clf):
    "The highlighted text holds the chosen row of the mean over layers and heads"
    a = clf.attention(TEXT)
    seen = clf.attention_html(TEXT, token='warm')
    assert seen.words == a.keys and np.allclose(seen.values, a.weights.mean((0,1))[2]) and 'warm' in seen.title
    assert np.allclose(clf.attention_html(TEXT, token=2, layer=1, head=0).values, a.weights[1,0,2])
    page = seen._repr_html_()
    assert re.sub('<[^>]*>', '', page.split('line-height')[1]).split('>')[-1].split() == a.keys
    with pytest.raises(ValueError, match="close to it are 'warm'"): clf.attention_html(TEXT, token='warn')
    with pytest.raises(ValueError, match='token=8'): clf.attention_html(TEXT, token=8)

@some
@given(st.lists(st.tuples(st.text(max_size=8), st.floats(-1e3, 1e3)), max_size=6))
def test_coloured_text(pairs):
    "Any words and numbers: all words are in the page, escaped, and in the print"
    t = ColouredText([w for w,_ in pairs], [v for _,v in pairs], 'title')
    page = t._repr_html_()
    for w,_ in pairs: assert html.escape(w.replace('\n', '⏎').replace('\t', '⇥')) in page
    assert page.count('title="') == len(pairs) and str(t).startswith('title')

def test_numbers_in_print():
    "Behind the words that stand out, hardly any where all are nearly even, none where all are nothing"
    marked = lambda values: [i for i,w in enumerate(str(ColouredText([f'w{i}' for i in range(len(values))], values)).split()) if '(' in w]
    values = [0.02+0.006*math.sin(i*i) for i in range(40)]
    top = sorted(range(40), key=lambda i: -values[i])
    assert set(marked(values)) == set(top[:len(marked(values))]) and 1 <= len(marked(values)) <= 15
    assert marked([0.]*9) == [] and marked([0.]*9+[-3.]) == [9] and marked([1.]*9) == [0] and marked([2.]) == [0] and marked([]) == []
    assert marked([-2,0,-1,0.2,0,0.4]) == [0,2]

# Attributions

def exact(learn, text, **kw):
    e = learn.explain(text, **kw)
    assert abs(e.gap) <= 0.02*max(1, abs(e.score-e.base))
    return e

@pytest.mark.parametrize('config', [{}, dict(config='reviews'), dict(config='vaswani'), dict(config='bloem'), dict(config='bert'), dict(config='llama'),
                                    *[dict(pool=p) for p in ('mean','max','first','last','max_logits')]], ids=str)
def test_complete(dls, config):
    "Attributions sum to the difference of the log-odds, for every preset and pool"
    learn = trained(transformer_classifier_learner(dls, **{**SMALL, **config}))
    e = exact(learn, TEXT)
    assert hooks(learn.model) == 0
    p = learn.predict(TEXT)[2]
    assert e.target == learn.predict(TEXT)[0] and abs(e.score - torch.logit(p.max()).item()) < 1e-3

@pytest.mark.parametrize('mode', [torch.no_grad,torch.inference_mode])
@pytest.mark.parametrize('kw', [{}, dict(members=2), dict(wide=50), dict(pool='max_logits', max_len=4)], ids=str)
def test_without_gradients(make, mode, kw):
    "A caller who wants no gradients gets the same shares, and so does the next"
    learn = make('clf', **kw)
    with mode(): first,curve = learn.explain(TEXT, baseline='mean'), deletion_curve(learn, [TEXT], n_draws=1)
    want = learn.explain(TEXT, baseline='mean')
    close(first.attributions, want.attributions)
    assert first.score == want.score and np.allclose(curve.attributed, deletion_curve(learn, [TEXT], n_draws=1).attributed)

def test_sure_beyond_all_numbers(clf):
    "Log-odds whose exponential overflows are a probability of 0 or 1; small ones keep their digits"
    e = clf.explain(TEXT)
    for score,p in ((-4000.,'0'), (4000.,'1'), (-46.05,'1e-20'), (0.,'0.5')):
        assert f'probability {p}, log-odds {score:+.2f}' in dataclasses.replace(e, score=score).title

@pytest.mark.parametrize('baseline', BASELINES)
def test_baselines(clf, baseline):
    "The score of the baseline is that of a text whose embeddings are all replaced"
    e = exact(clf, TEXT, baseline=baseline)
    emb = clf.model.encoder.emb
    base = BASELINES[baseline](emb, 1)
    h = emb.register_forward_hook(lambda m, args, out: base.expand_as(out))
    with torch.no_grad(): out = clf.model.eval()(e.ids[None].to(base.device))
    h.remove()
    assert abs(float(log_odds(out, e.idx)) - e.base) < 1e-4

def test_more_steps_less_gap(dls):
    "The sum converges (a maximum in the pool would slow it down by its kinks), and too few points warn"
    learn = trained(transformer_classifier_learner(dls, **SMALL, pool='mean'))
    gaps = [abs(learn.explain(TEXT, steps=n, tol=1e9).gap) for n in (1,1024)]
    assert gaps[1] < 1e-3 < gaps[0]
    with pytest.warns(UserWarning, match='steps=1 the shares miss'): learn.explain(TEXT, steps=1, tol=gaps[0]/1e3)

def test_gradient_by_differences():
    "`integrated_gradients` of a smooth function of the embeddings is the integral, taken by finite differences along the way"
    torch.manual_seed(0)
    class Smooth(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = TransformerEncoder(vocab_sz=9, d_model=4, n_heads=2, n_layers=1, init='torch')
            self.lin = nn.Linear(4, 1)
        def of(self, e): return torch.tanh(self.lin(e)).prod(1) + e.sum((1,2))[:,None]**2
        def forward(self, x): return self.of(self.encoder.emb(x))
    m,ids = Smooth().double(), torch.tensor([[3,5,7]])
    e,base = m.encoder.emb(ids).detach(), torch.randn(4).double()
    got,read,low,high = integrated_gradients(m, ids, lambda o: o[:,0], base, steps=40)
    want,eps,n = torch.zeros(3).double(), 1e-5, 2000
    for a in (torch.arange(n)+0.5)/n:
        at = base + a*(e-base)
        for i in range(3):
            step = torch.zeros_like(at); step[0,i] = eps*(e[0,i]-base)
            want[i] += float(m.of(at+step) - m.of(at-step))/(2*eps*n)
    close(got, want, 1e-5)
    assert read.tolist() == [3,5,7] and abs(low-float(m.of(base.expand_as(e)))) < 1e-9 and abs(high-float(m(ids))) < 1e-9

def test_one_baseline_for_all_members():
    "A vector that is not given for each stands for all of them"
    model = TransformerClassifier(vocab_sz=9, d_model=8, n_heads=2, n_layers=1, n_out=2, members=3).eval()
    ids,base = torch.tensor([[3,5,7]]), torch.randn(8)
    a,b = (integrated_gradients(model, ids, lambda o: o[:,0], o, steps=4) for o in (base, [base]*3))
    assert a[0].equal(b[0]) and a[2:] == b[2:]

class Asked(torch.autograd.Function):
    "`F.linear`, which notes whether the gradient of its weights is asked for"
    @staticmethod
    def forward(ctx, x, w, seen):
        ctx.save_for_backward(x, w)
        ctx.seen = seen
        return x @ w.T
    @staticmethod
    def backward(ctx, g):
        x,w = ctx.saved_tensors
        ctx.seen.append(ctx.needs_input_grad[1])
        return g @ w, g.flatten(0, -2).T @ x.flatten(0, -2), None

def test_gradients_of_embeddings_alone():
    "Those of the weights would be thrown away; the model that is explained keeps its own"
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = TransformerEncoder(vocab_sz=9, d_model=4, n_heads=2, n_layers=1)
            self.lin,self.seen = nn.Linear(4, 2, bias=False), []
        def forward(self, x): return Asked.apply(self.encoder.emb(x), self.lin.weight, self.seen).tanh().sum(1)
    m = Sum()
    integrated_gradients(m, torch.tensor([[3,5,7]]), lambda o: o[:,0], torch.zeros(4), steps=4)
    assert m.seen and not any(m.seen)
    assert isinstance(m.lin.weight, nn.Parameter) and all(p.requires_grad and p.grad is None for p in m.parameters())

def _tied(learn): learn.model.head.own = learn.model.encoder.emb; learn.model.encoder.blocks[-1] = learn.model.encoder.blocks[0]
def _parametrized(learn): nn.utils.parametrizations.weight_norm(learn.model.head)
def _normed(learn): nn.utils.weight_norm(learn.model.head)
def _hooked(learn): learn.model.head.register_forward_hook(lambda m, args, out: out + m.weight.sum())
def _frozen(learn): learn.freeze()
def _listed(learn):
    "Weights under second names"
    w = learn.model.head
    w.again,w.ps = w.weight, nn.ParameterList([w.weight, w.bias])
    w.register_parameter('none', None)

@pytest.mark.filterwarnings('ignore:.*weight_norm.*:FutureWarning')
@pytest.mark.parametrize('change', [id, _tied, _parametrized, _normed, _hooked, _frozen, _listed])
@pytest.mark.parametrize('kw', [{}, dict(config='auto', members=2)], ids=['plain','members_and_words'])
def test_shares_as_with_gradients_of_weights(dls, change, kw, monkeypatch):
    "To the bit, and nothing happens to the model"
    learn = trained(transformer_classifier_learner(dls, **{**SMALL, **kw}))
    change(learn)
    before = {k:(p, p.requires_grad, p.detach().clone()) for k,p in learn.model.named_parameters()}
    e = learn.explain(TEXT)
    after = dict(learn.model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[k] is p and p.requires_grad == asks and p.equal(v) for k,(p,asks,v) in before.items())
    monkeypatch.setattr(attribution, 'shadow', lambda m, **kw: shadow(m))
    want = learn.explain(TEXT)
    assert e.attributions.equal(want.attributions) and (e.score,e.base) == (want.score,want.base)

def test_words_that_decide(clf):
    "The words that make a text positive get the largest shares, and speak against the other label"
    learn = quiet(transformer_classifier_learner(clf.dls, **SMALL))
    learn.fit(6, 3e-3)
    label,other = ('pos','neg') if exact(learn, 'film', target='pos').base < 0 else ('neg','pos')   # first what it does not say anyway
    own = dict(pos=('warm','clever'), neg=('dull','cold'))[label]
    text = f'film with {" ".join(own)} it was'
    e,other = exact(learn, text, target=label),exact(learn, text, target=other)
    assert e.table.word[0] in own and {*own} <= {*e.table.word[:3]} and e.table.attribution[0] > 0
    close(torch.tensor(other.values), -torch.tensor(e.values), 1e-3)        # two classes: one's log-odds are the other's, negated
    assert clf.explain('film', target=1).target == 'pos' and clf.explain('film', target=-1).idx == 1

@pytest.mark.parametrize('kind', ['multi','reg'])
def test_other_tasks(make, kind):
    "Many labels: a label's own logit; numbers: the number"
    learn = trained(make(kind, **(dict(y_range=(0,1)) if kind == 'reg' else {})))
    e = exact(learn, TEXT)
    out = learn.model.eval()(e.ids[None].to(next(learn.model.parameters()).device))[0]
    assert e.idx == int(out.argmax()) and abs(e.score - float(out[e.idx])) < 1e-5
    assert ('probability' in e.title) == (kind == 'multi')
    e.plot()
    if kind == 'multi': assert exact(learn, TEXT, target='long').target == 'long'
    else:
        with pytest.raises(TypeError, match='predicts numbers'): deletion_curve(learn, [TEXT])
        with pytest.raises(ValueError, match="target='x': the outputs are numbered"): learn.explain(TEXT, target='x')

@pytest.mark.parametrize('long', ['window','head','tail','head+tail'])
def test_long_texts(dls, long):
    "Beyond `max_len`: in windows every token has a share, otherwise those that are read"
    learn = trained(transformer_classifier_learner(dls, **SMALL, max_len=8, long=long))
    e = exact(learn, LONG)
    toks = ['xxbos', *LONG.split()]
    want = dict(window=toks, head=toks[:8], tail=toks[-8:])
    assert e.tokens == want.get(long, toks[:4]+toks[-4:]) and len(e.values) == len(e.tokens)
    assert deletion_curve(learn, [LONG], n_points=3, n_draws=1).attributed.shape == (1,3)

@pytest.mark.parametrize('long', ['head','tail','head+tail'])
@pytest.mark.parametrize('kw', [dict(wide=50), dict(wide=50, members=2), dict(config='auto', d_model=32)], ids=str)
def test_a_wide_path_reads_on(dls, long, kw):
    "Where the encoder crops a text, the wide path reads all of it: every word is listed, the shares add up, and words go from the whole text"
    learn = trained(transformer_classifier_learner(dls, **({**SMALL, **kw} if 'wide' in kw else kw), max_len=8, long=long))
    text = 'new1 music xxpad warm cold new2 ' + LONG
    toks = ['xxbos', *text.replace(' xxpad', '').split()]
    e = exact(learn, text)
    assert len(e.tokens) == len(e.values) == len(e.ids) == len(toks) and e.tokens[3:5] == toks[3:5]
    p = learn.predict(text)[2].max()
    assert abs(e.score - torch.logit(p).item()) < 1e-3
    a = deletion_curve(learn, [text], n_points=3, n_draws=1).attributed[0]
    assert abs(a[0]-p) < 1e-5 and abs(a[2]-learn.outputs([e.ids[:1]]).softmax(1)[0,e.idx]) < 1e-5
    learn.model.wide.shares[1] = 0.                                             # the transformer alone: nothing beyond the crop
    read = dict(head=range(8), tail=range(len(toks)-8, len(toks))).get(long, [*range(4), *range(len(toks)-4, len(toks))])
    assert set(learn.explain(text).attributions.nonzero()[:,0].tolist()) == {*read}

def test_empty_text(clf):
    "What is empty to a reader is a token to the tokenizer; a text of nothing but special tokens has no words"
    e = exact(clf, '')
    assert e.tokens == ['xxbos','xxunk'] and str(e) and e._repr_html_()
    with pytest.raises(ValueError, match='no word to remove'): deletion_curve(clf, ['xxbos'])

def test_numbers_of_columns_are_no_words(df):
    "They are the frame of a text, as `xxfld` is"
    dls = TransformerDataLoaders.from_df(df.assign(title='warm'), text_col=['title','text'], label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), num_workers=0, bs=8)
    learn = quiet(transformer_classifier_learner(dls, **SMALL))
    e = learn.explain(dict(title='warm 2', text='film'))
    assert [e.spans[i][0] for i in attribution._words(e)] == ['warm','2','film'] and e.tokens[:3] == ['xxbos','xxfld','1']

def test_labels_that_are_numbers(df):
    "2 is the label 2.0, whatever its number"
    dls = TransformerDataLoaders.from_df(df.assign(stars=[1.+i%3 for i in range(len(df))]), text_col='text', label_col='stars', y_block=CategoryBlock, valid_col='is_valid', num_workers=0, bs=8)
    learn = quiet(transformer_classifier_learner(dls, **SMALL))
    assert [learn.explain(TEXT, target=o).target for o in (2, np.int64(1), 3., 0, -1)] == ['2.0','1.0','3.0','1.0','3.0']

def test_targets_by_number(clf):
    "What `predict` returns as index, and numpy's numbers; nothing else that could be taken for one"
    i = clf.predict(TEXT)[1]
    for target in (i, int(i), np.int64(i), np.argmax(clf.predict(TEXT)[2].numpy())): assert clf.explain(TEXT, target=target).idx == int(i)
    assert clf.explain(TEXT, target=np.int64(-1)).idx == 1
    for target in (True, 1., torch.tensor(1.), torch.tensor([0,1]), np.int64(2)):
        with pytest.raises(ValueError, match='not one of the 2 labels'): clf.explain(TEXT, target=target)

def test_explain_mistakes(clf, make, s2s, dls):
    for kw,match in ((dict(target='posi'),"close to it are 'pos'"), (dict(target=2),'target=2'), (dict(baseline='nul'),"baseline='nul'"), (dict(steps=0),'steps=0')):
        with pytest.raises(ValueError, match=match): clf.explain(TEXT, **kw)
    with pytest.raises(TypeError, match='a list'): clf.explain([TEXT])
    with pytest.raises(ValueError, match='bigrams=90: what a pair'): make('clf', bigrams=90).explain(TEXT)
    for learn in (make('lm'),transformer_mlm_learner(dls, **SMALL),s2s):
        for f in (learn.explain, lambda t: deletion_curve(learn, [t])):
            with pytest.raises(TypeError, match='only classifiers'): f('abc')

def test_whole_numbers_of_any_kind(clf, s2s):
    "numpy's numbers are numbers; what is none, or not there, is named"
    a = clf.attention(TEXT)
    one = np.int64(1)
    assert a.plot(layer=one, head=one).shape == (1,1) and str(clf.attention_html(TEXT, token=one)) == str(clf.attention_html(TEXT, token=1))
    assert clf.attention(TEXT, window=None).title == 'attention' and len(clf.neighbours('warm', n=np.int64(3))) == 3
    assert len(clf.explain(TEXT, steps=np.int64(40)).values) == len(a.keys)
    for token in (1.5, None, np.int64(99)):
        with pytest.raises(ValueError, match='is not among|numbered from 0'): a.look(token)
    for n in (2.5, '3', None):
        with pytest.raises(ValueError, match='n=.*a whole number'): clf.neighbours('warm', n=n)
    for steps in (1.5, '3', 0):
        with pytest.raises(ValueError, match='steps=.*a whole number'): clf.explain(TEXT, steps=steps)

def test_one_window_at_a_time(make):
    with pytest.raises(ValueError, match='window=None: the text is read in 3 windows.*choose one'): make('clf', max_len=8).attention(LONG, window=None)

@pytest.mark.parametrize('kind', ['clf','mlm','lm'])
def test_sides_of_neighbours(make, dls, kind, s2s):
    learn = transformer_mlm_learner(dls, **SMALL) if kind == 'mlm' else make(kind)
    with pytest.raises(ValueError, match=r'side=1 of a Transformer\w+ is not one of .0,.'): learn.neighbours('film', side=1)
    with pytest.raises(ValueError, match='side=2 of a Seq2SeqTransformer'): s2s.neighbours('a', side=2)

# Words

specials = ['xxbos','xxmaj','xxup','xxrep','xxwrep','xxeos','xxfld','3','word','▁','▁▁','!']

@given(st.lists(st.sampled_from(specials), max_size=10), st.sampled_from([None,CharTokenizer()]))
def test_spans_cover(tokens, tok):
    "Every token is in one span, in order"
    spans = word_spans(tokens, tok)
    assert [i for _,a,b in spans for i in range(a, b)] == list(range(len(tokens))) and all(w for w,_,_ in spans)

def test_word_kinds():
    "Byte pairs and the pieces of SentencePiece become words again"
    tok = BPETokenizer(vocab_sz=280, min_freq=1).train(['the film was warm'])
    toks = next(tok(['the film  was ünique']))
    assert len(toks) > 6 and [w for w,_,_ in word_spans(['xxbos',*toks], tok)] == ['xxbos','the','film','was','ünique']
    piece = object.__new__(SentencePieceTokenizer)
    assert word_spans(['xxbos','▁un','able','▁to'], piece) == [('xxbos',0,1), ('unable',1,3), ('to',3,4)]
    assert word_spans(['xxmaj'], None)[0][1:] == (0,1)

@pytest.mark.parametrize('make_tok', [CharTokenizer, lambda: BPETokenizer(vocab_sz=300)], ids=['characters','byte pairs'])
def test_split_words(df, make_tok):
    "Shares of characters and byte pairs are added up by word"
    learn = trained(transformer_classifier_learner(make_dls(df, tok_tfm=make_tok(), rules=[]), **SMALL))
    e = exact(learn, 'music warm film')
    assert [w for w,_,_ in e.spans if not w.startswith('xx')] == ['music','warm','film'] and len(e.tokens) > 5
    assert abs(sum(e.values) - float(e.attributions.sum())) < 1e-5

@pytest.mark.parametrize('tok', [None,CharTokenizer()], ids=['words','characters'])
def test_words_of_a_text_that_was_turned_around(df, tok):
    "Marks go with the word behind them, and characters join as they stood in the text; numbers of columns stand before `xxfld`"
    dls = TransformerDataLoaders.from_df(df.assign(title='warm'), text_col=['title','text'] if tok is None else 'text', label_col='label', valid_col='is_valid', tok_tfm=tok, num_workers=0, bs=8, backwards=True)
    learn = quiet(transformer_classifier_learner(dls, **SMALL))
    text = dict(title='It FILM', text='wwww warm') if tok is None else 'It FILM wwww warm'
    e = learn.explain(text)
    assert [i for _,a,b in e.spans for i in range(a, b)] == [*range(len(e.tokens))]
    assert [e.spans[i][0] for i in attribution._words(e, True)] == ['warm','wwww','FILM','It']
    assert len(deletion_curve(learn, [text], n_points=3, n_draws=1).shares) == 3

def test_no_tokens(letters):
    "A text that `predict` answers, but of which there is nothing to see"
    letters.predict('')
    for f in (letters.explain, letters.attention, letters.step_through, lambda t: deletion_curve(letters, [t])):
        with pytest.raises(ValueError, match="'' has no tokens to look into"): f('')

def test_unknown_blanks(letters):
    "White space that no text of training had is shown as it is, and separates words"
    e = letters.explain('warm\nfilm\tit')
    assert [w for w,_,_ in e.spans] == ['warm','film','it'] and e.tokens == list('warm\nfilm\tit')
    assert 'w a r m ⏎ f' in str(letters.step_through('warm\nfilm'))

# The deletion curve

@pytest.mark.parametrize('text,want', [
    ('这家餐厅很好。', [*'这家餐厅很好。']), ('とてもカメラ', [*'とてもカメラ']), ('ดีมาก', ['ดี','ม','า','ก']),
    ('这book 很good!', ['这','book','很','good!']), ('nice 电影, and warm', ['nice','电','影',',','and','warm'])])
def test_words_of_scripts_without_spaces(text, want):
    "Each token is a span; bytes join to whole characters, and signs above stay where they are; Latin words stay whole"
    for tok in (CharTokenizer(), BPETokenizer(265).train(['a']*9)):
        toks, = tok([text])
        spans = word_spans(['xxbos',*toks], tok)
        assert [w for w,_,_ in spans[1:]] == want
        assert [i for _,a,b in spans for i in range(a, b)] == [*range(len(toks)+1)]

def test_pieces_across_characters():
    "A piece that ends within a character is joined with the next; learned pieces of several characters stay whole"
    bpe = BPETokenizer(400).train(['很好的电影。','很好的餐厅。']*50)
    toks, = bpe(['很好的电影。'])
    words = [w for w,_,_ in word_spans(toks, bpe)]
    assert ''.join(words) == '很好的电影。' and len(words) <= len(toks) and '\ufffd' not in ''.join(words)
    piece = SimpleNamespace(word_start='▁', lossless=False)
    assert _word_starts(['▁这家','餐厅','▁good','ly'], piece, None) == [0,1,2]

def test_spans_of_long_words_are_quick():
    "A word of 20,000 letters is not joined anew at each of them"
    start = time.process_time()
    assert len(word_spans([*'abcd'*5000], CharTokenizer())) == 1
    assert time.process_time()-start < 3

def test_deletion_curve_of_one_word(clf):
    "It has one order: a warning says so"
    with pytest.warns(UserWarning, match='1 of 2 texts are one word.*CharTokenizer'): deletion_curve(clf, ['film', TEXT], n_points=3, n_draws=1)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        deletion_curve(clf, [TEXT], n_points=3, n_draws=1)

def test_deletion_curve(clf, df):
    "Ends and order by hand; below random on a trained model; drawn with its band"
    texts = df.text[df.is_valid][:6]
    c = deletion_curve(clf, texts, n_draws=4)
    p = clf.predict(texts)[2].max(1).values
    assert np.allclose(c.attributed[:,0], p, atol=1e-5) and np.allclose(c.random[:,:,0], p, atol=1e-5)
    assert np.allclose(c.attributed[:,-1], c.random[:,:,-1], atol=1e-6)     # nothing is left
    e = clf.explain(texts.iloc[0])
    words = [(v,t) for v,t in zip(e.values[1:], e.tokens[1:])]
    n = round(0.3*len(words))
    kept = [t for i,(v,t) in enumerate(words) if i not in np.argsort([-v for v,_ in words], kind='stable')[:n]]
    assert abs(c.attributed[0,3] - clf.predict(' '.join(kept))[2][e.idx]) < 1e-5
    assert c.areas[0] < c.areas[1] and (c.table.attributed[5:-1] < c.table.random[5:-1]).all()
    ax = c.plot()
    assert len(ax.lines) == 2 and ax.get_title() == 'words removed from 6 texts'
    assert deletion_curve(clf, texts[:1], n_draws=1).plot().get_title() == 'words removed from 1 text'
    assert np.array_equal(deletion_curve(clf, texts[:2], seed=1).random, deletion_curve(clf, texts[:2], seed=1).random)

def test_deletion_mistakes(clf):
    with pytest.raises(ValueError, match='n_points=1'): deletion_curve(clf, [TEXT], n_points=1)
    with pytest.raises(ValueError, match='empty'): deletion_curve(clf, [])
    with pytest.raises(TypeError, match='stepz'): deletion_curve(clf, [TEXT], stepz=3)

def test_deletion_many_labels(make):
    c = deletion_curve(trained(make('multi')), [TEXT], n_draws=2)
    assert c.attributed.shape == (1,11) and ((c.attributed >= 0) & (c.attributed <= 1)).all()

# Positions and neighbours

def test_positions(make):
    "Every scheme that has vectors is drawn, a learner's too; the others say why not"
    axs = plot_positions(['learned','sinusoidal','rotary','alibi'], n=20)
    assert axs.shape == (4,2)
    for right in axs[:3,1]: assert np.allclose(np.diag(right.images[0].get_array()), 1, atol=1e-5)
    assert np.allclose(axs[3,1].images[0].get_array()[0], -np.arange(20)*0.5)    # head 0 of 8
    learn = make('clf', positions='learned', max_len=12)
    left = plot_positions(learn)[0,0].images[0].get_array()
    assert np.allclose(left, learn.model.encoder.positions.emb.weight.detach().cpu().T)
    plot_positions([make('clf'), make('lm', mode='wide')])
    for which in ('none','conv',make('clf', positions='conv')):
        with pytest.raises(ValueError, match='no vectors to draw'): plot_positions(which)
    with pytest.raises(ValueError, match="'rotery' is neither"): plot_positions('rotery')

def test_neighbours(clf, s2s):
    "Against an explicit loop; never the word itself or padding"
    got = clf.neighbours('warm', n=4)
    vocab,emb = list(text_vocab(clf.dls)), clf.model.encoder.emb.weight.detach().cpu()
    cos = {t:float(emb[i] @ emb[vocab.index('warm')] / (emb[i].norm()*emb[vocab.index('warm')].norm())) for i,t in enumerate(vocab) if t not in ('warm','xxpad','xxfake')}
    want = sorted(cos, key=cos.get, reverse=True)[:4]
    assert list(got.token) == want and np.allclose(got.cosine, [cos[t] for t in want], atol=1e-5)
    assert len(clf.neighbours('warm', n=10_000)) == len(cos)
    assert len(s2s.neighbours('a', n=2, side=1)) == 2
    with pytest.raises(ValueError, match="close to it are 'warm'"): clf.neighbours('wram')
    with pytest.raises(ValueError, match='n=0'): clf.neighbours('warm', n=0)

# Step through

@pytest.mark.parametrize('kind', ['clf','lm','reg'])
def test_steps(make, kind):
    "Every tensor leads to the next: the outputs are the model's"
    learn = make(kind)
    s = learn.step_through(TEXT)
    model,ids = learn.model.eval(), s['ids'].to(next(learn.model.parameters()).device)
    assert s.tokens == ['xxbos', *TEXT.split()] and s['outputs'].equal(model(ids).detach().cpu())
    close(s['embeddings'], model.encoder.emb(ids).detach().cpu())
    close(s['last norm'], model.encoder.norm(s['block 1, ff'].to(ids.device)).detach().cpu())
    close(s['block 0, attn: weights'], learn.attention(TEXT).weights[:1])
    assert [k for k in s.steps][:3] == ['ids','embeddings','with positions'] and hooks(model) == 0
    assert str(s).count('\n') == len(s.steps) and all(k in s._repr_html_() for k in s.steps)
    with pytest.raises(KeyError, match="close to it are 'outputs'"): s['output']
    assert [*s] == [*s.keys()] == [*s.steps] == [*dict(s)] and len(s) == len(s.steps) and 'ids' in s and 0 not in s and 'idx' not in s
    for other in (0, slice(2), -1, None):
        with pytest.raises(KeyError, match='is no step.*ids'): s[other]
    with pytest.raises(ValueError, match='leave out target'): learn.step_through(TEXT, 'x')

def test_steps_of_a_model_that_has_diverged(make):
    "NaN and infinities are shown as such, beside the numbers that are left"
    learn = make()
    for weight,v in ((learn.model.encoder.emb.weight[0], math.inf), (learn.model.encoder.norm.weight, math.nan)): weight.data.fill_(v)
    s = learn.step_through('film qqq')                                      # an unknown word has the first embedding
    rows = {r.split('  ')[0]:r for r in str(s).splitlines()[1:]}
    assert not s['embeddings'].isfinite().all() and re.search('[▁▂▃▄▅▆▇█]{4}[?]$', rows['embeddings']) and re.search(' [?]{2,}$', rows['outputs'])
    assert s._repr_html_().count('png') > 5

def test_steps_of_pairs(s2s):
    s = s2s.step_through('abc', 'cba')
    assert s['encoder: ids'].shape == (1,5) and s['decoder: ids'].shape == (1,4) and s['decoder: block 1, cross: weights'].shape == (1,2,4,5)
    close(s['outputs'], s2s.model.eval().cpu()(s['encoder: ids'], s['decoder: ids']).detach())
    assert s2s.step_through('abc')['decoder: ids'].shape[1] == len(s2s.predict('abc')) + 1

def test_steps_of_shared_embeddings(pairs):
    "Encoder and decoder share a module, and each shows its own call of it"
    learn = quiet(transformer_seq2seq_learner(pairs, **SMALL, share_emb=True))
    s = learn.step_through('abc', 'ab')
    assert (s['encoder: ids'].shape[1], s['decoder: ids'].shape[1]) == (5,3)

class OwnBlock(nn.Module):
    "A block of one's own: parts of other names, one of them not used, one that returns no tensor"
    def __init__(self, d_model):
        super().__init__()
        self.mix,self.spare,self.pair = SelfAttention(d_model, 2), nn.Linear(2,2), Pair()
    def forward(self, x, mask=None, pos=None): return self.pair(x + self.mix(x, mask, pos))[0]

class Pair(nn.Module):
    def forward(self, x): return x,x

def test_own_block(make):
    learn = make('clf', block=OwnBlock)
    assert learn.attention(TEXT).weights.shape == (2,2,8,8)
    s = learn.step_through(TEXT)
    assert {'block 0, mix: weights','block 0, mix'} <= set(s.steps) and not [k for k in s.steps if 'spare' in k or 'pair' in k]
    exact(learn, TEXT)

# The largest losses

def test_top_losses_labels(clf, make):
    "In order, each beside its own text"
    t = clf.top_losses(5)
    assert list(t.columns) == ['text','target','prediction','probability','loss'] and t.loss.is_monotonic_decreasing
    for r in t.itertuples():
        p = clf.predict(r.text.removeprefix('xxbos '))
        assert p[0] == r.prediction and abs(float(p[2].max()) - r.probability) < 1e-5
        assert abs(-math.log(p[2][list(clf.dls.vocab[1]).index(r.target)]) - r.loss) < 1e-4
    assert clf.top_losses(1, largest=False).loss[0] < t.loss[0] and len(clf.top_losses(10_000)) == 16
    assert len(clf.top_losses(3, ds_idx=0)) == 3

@pytest.mark.parametrize('kind', ['multi','reg'])
def test_top_losses_other(make, kind):
    learn = trained(make(kind))
    t = learn.top_losses(4)
    for r in t.itertuples():
        pred,_,acts = learn.predict(r.text.removeprefix('xxbos '))
        if kind == 'multi': assert pred == r.prediction
        else: assert abs(float(acts[0]) - r.prediction) < 1e-5 and abs((r.prediction-r.target)**2 - r.loss) < 1e-5

def test_top_losses_lm(make):
    "Sequences of the loader's length and what is left of each row, with the mean of their tokens' losses"
    learn = make('lm')
    with learn.no_bar(): logp,targs = learn.get_preds()
    n = learn.dls.valid.seq_len
    assert logp.shape[1] % n and logp.shape[1] > n
    t = learn.top_losses(1000)
    means = -torch.stack([o.mean() for row in logp for o in row.split(n)])
    assert np.allclose(t.loss, means.sort(descending=True).values, rtol=1e-5)
    assert np.allclose(learn.top_losses(3).loss, t.loss[:3]) and all(r.surprise in r.text.split() for r in t.itertuples())
    assert sum(len(o.split()) for o in t.text) == targs.numel()

def test_top_losses_pairs(s2s):
    t = s2s.top_losses(3)
    assert list(t.columns) == ['source','target','prediction','loss'] and (t.target == t.source.str[::-1]).all()
    assert list(t.prediction) == s2s.predict(list(t.source))

def test_plot_top_losses(clf, make, s2s, capsys):
    for learn in (clf,make('lm'),s2s):
        learn.plot_top_losses(2, trunc_at=3)
        out = capsys.readouterr().out
        assert 'loss' in out and out.count('\n') >= 3
    for k in (0, 2.5, '3', None):
        with pytest.raises(ValueError, match=f'k={k!r}: at least 1, a whole number'): clf.top_losses(k)
    with pytest.raises(ValueError, match='no targets'): clf.top_losses(dl=clf.dls.test_dl([['xxbos','film']]))

# All kinds of learners

def test_exported(clf, s2s, tmp_path):
    "What comes back from a file can be looked into just as well"
    for learn,text in ((clf,TEXT),(s2s,'abc')):
        learn.path,path = tmp_path,learn.path
        try: learn.export('l.pkl')
        finally: learn.path = path
        back = load_learner(tmp_path/'l.pkl')
        close(back.attention(text).weights, learn.attention(text).weights.cpu())
        assert str(back.step_through(text)) == str(learn.step_through(text))
        if learn is clf: assert str(back.explain(text)) == str(learn.explain(text))
        with pytest.raises(ValueError, match='no texts'): back.top_losses()

def test_plain_learner(dls, dls_lm):
    "A plain `Learner` around one of our models will do; other models are a TypeError"
    config = make_config(vocab_sz=len(dls.vocab[0]), n_out=2, **SMALL)
    plain = Learner(dls, TransformerClassifier(config), loss_func=nn.CrossEntropyLoss())
    assert plain.attention(TEXT).weights.shape == (2,2,8,8) and plain.explain(TEXT).target in ('pos','neg')
    other = Learner(dls, nn.Linear(2,2), loss_func=nn.CrossEntropyLoss())
    for f in (other.show_attention, other.explain, other.step_through, other.neighbours, lambda t: deletion_curve(other, [t]), lambda t: plot_positions(other)):
        with pytest.raises(TypeError, match='Learner with the model Linear'): f(TEXT)
    with pytest.raises(TypeError, match='Learner has no table of losses'): plain.top_losses()
    s2s = Learner(dls, Seq2SeqTransformer(make_config(vocab_sz=30, **SMALL)), loss_func=nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match='transformer_seq2seq_learner'): s2s.show_attention(TEXT)

def test_very_long(make):
    "5,000 words"
    learn,text = make('clf', max_len=512), ' '.join(['music','warm','of'][i%3] for i in range(5000))
    a = learn.attention(text, window=9)
    assert a.title == 'attention, window 9 of 10'
    e = learn.explain(text, steps=2, tol=1e9)
    assert len(e.values) == 5001 and len(learn.step_through(text)._repr_html_()) < 1e6

# What is shown

def test_no_bytes_are_shown(df):
    "Byte pairs as a reader sees them, with ▁ for a space"
    dls = make_dls(df.assign(text=df.text), tok_tfm=BPETokenizer(300))
    learn = quiet(transformer_classifier_learner(dls, **SMALL))
    text = 'a cold film'
    for tokens in (learn.attention(text).keys, learn.step_through(text).tokens):
        assert not any('Ġ' in t for t in tokens) and ''.join(tokens).endswith('a▁cold▁film')
    assert [w for w,_,_ in learn.explain(text).spans][-3:] == text.split()
    assert not any('Ġ' in t for t in learn.top_losses(3).text)

@pytest.mark.parametrize('long', ['window','head','tail','head+tail'])
def test_unknown_words_of_long_texts(dls, long):
    "Each stands where it was read, also where only a part is"
    learn = trained(transformer_classifier_learner(dls, **SMALL, max_len=8, long=long))
    toks = ['xxbos', *(f'new{i}' if i%3 else 'film' for i in range(19))]
    want = dict(window=toks, head=toks[:8], tail=toks[-8:])
    assert learn.explain(' '.join(toks[1:])).tokens == want.get(long, toks[:4]+toks[-4:])
    if long == 'window': assert learn.attention(' '.join(toks[1:]), window=1).keys == toks[7:14]

def test_what_predict_reads(df):
    "A classifier reads the end of a text, too, where its loaders put one"
    class Ends(BaseTokenizer):
        def __call__(self, items): return ([*t, 'xxeos'] for t in super(Ends, self).__call__(items))
    learn = quiet(transformer_classifier_learner(make_dls(df, tok_tfm=Ends()), **SMALL))
    e = learn.explain(TEXT)
    assert e.tokens[-1] == learn.attention(TEXT).keys[-1] == 'xxeos' and abs(e.score - torch.logit(learn.predict(TEXT)[2][e.idx]).item()) < 1e-4

def test_curve_of_rows(clf, df):
    "A frame, its rows and its texts are the same"
    a,b,c = (deletion_curve(clf, o, n_points=3, n_draws=1) for o in (df[:2], [dict(df.iloc[i]) for i in range(2)], df.text[:2]))
    assert np.array_equal(a.attributed, b.attributed) and np.array_equal(a.attributed, c.attributed)

# Attention of one's own, and blocks that are one

class NoWeights(SelfAttention):
    "It returns its output alone"
    def forward(self, x, mask=None, pos=None, **kwargs): return super().forward(x, mask, pos)

@pytest.mark.parametrize('look', ['attention','show_attention','attention_html','step_through'])
def test_attention_without_weights_is_named(make, look):
    learn = make('clf')
    for b in learn.model.encoder.blocks: b.attn.fn.__class__ = NoWeights
    with pytest.raises(TypeError, match='NoWeights gives no weights: .*need_weights=True'): getattr(learn, look)('a warm film')

@pytest.mark.parametrize('kind', ['clf','lm'])
def test_attention_of_shared_blocks(make, kind):
    "A layer each, as of blocks with the same weights that are not one"
    learn,other = make(kind, n_layers=3), make(kind, n_layers=3)
    other.model.load_state_dict(learn.model.state_dict())
    for i in (1, 2):
        other.model.encoder.blocks[i].load_state_dict(learn.model.encoder.blocks[0].state_dict())
        learn.model.encoder.blocks[i] = learn.model.encoder.blocks[0]
    text = 'a warm clever film'
    got,want = learn.attention(text).weights, other.attention(text).weights
    assert got.shape[0] == 3 and torch.allclose(got, want, atol=1e-6)
    got,want = learn.step_through(text).steps, other.step_through(text).steps
    assert [*got] == [*want] and all(torch.allclose(got[k], want[k], atol=1e-5) for k in want)

def test_results_are_themselves(make):
    "What explains a text is equal to itself alone, and may be in lists, sets and dictionaries"
    learn = make('clf')
    for f in (learn.explain, learn.attention, learn.step_through, learn.attention_html, lambda t: deletion_curve(learn, [t], n_draws=1)):
        a,b = f(TEXT), f(TEXT)
        assert a == a and a != b and b in [a,b] and {a:1, b:2}[b] == 2
