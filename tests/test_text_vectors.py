"Vectors of texts: features as sets of Python make them, gradients as autograd has them, and texts of one kind lie together"
import math, pickle, numpy as np, pytest, torch, torch.nn.functional as F
import fastai_txf.recipes.text_vectors as module
from fastai_txf.recipes.text_vectors import TextVectors, Triples
from fastai_txf.train.counting import feature_matrix
from hypothesis import given, strategies as st
from scipy.sparse import csr_matrix

VOCAB = ['xxunk','xxpad','xxbos','xxmaj', *(f'w{i}' for i in range(40))]

def make_texts(n=120, seed=0):
    "Texts of two kinds of words, of 5 to 30 words each: `(texts, kinds)`"
    rng = np.random.default_rng(seed)
    kinds = np.arange(n) % 2
    return [[2, *(4 + 20*k + rng.integers(0, 20, rng.integers(5, 30)))] for k in kinds], kinds

def fit(texts, **kw): return TextVectors(texts, VOCAB, **{**dict(d=16, passes=4, min_freq=2), **kw})

@given(st.lists(st.lists(st.integers(2, 6), min_size=1, max_size=9), min_size=1, max_size=5))
def test_triples(texts):
    "One, two and three tokens in a row, each once a text"
    x,_ = feature_matrix(Triples(2**30, 0, 7), texts)
    for row,ids in zip(x, texts): assert row.nnz == sum(len({*zip(*(ids[i:] for i in range(n)))}) for n in (1,2,3))

def test_learning_turns_as_autograd_says(monkeypatch):
    "The features of a batch, and those drawn, go one step of AdaGrad against the gradient of the loss as it is written down"
    turned = []
    monkeypatch.setattr(module, '_turn', lambda u, h, g, turn=module._turn: turned.append(g) or turn(u, h, g))
    vectors = fit(make_texts(8)[0], passes=1)
    x = vectors._columns(make_texts(8)[0])
    v,u = vectors.v.clone().requires_grad_(), F.normalize(torch.randn(8, 16))
    there = torch.tensor(x.toarray()).bool()
    rng = torch.Generator().manual_seed(3)
    drawn = torch.multinomial(vectors.q, module._drawn, replacement=True, generator=rng)
    logits = 4*u@v.T - math.log(5)
    n = there.sum(1, keepdim=True)
    loss = F.softplus(-logits[there]).sum()
    loss_drawn = (5*n/module._drawn*F.softplus(logits[:,drawn])).sum()
    want, = torch.autograd.grad(loss, v, retain_graph=True)
    turned.clear()
    batch = module._Batch(x, vectors.v)
    got = vectors._learn(batch, u, torch.zeros(len(v)), rng.manual_seed(3))
    assert got == pytest.approx(((loss + loss_drawn)/n.sum()).item(), rel=1e-5)
    torch.testing.assert_close(turned[0], want[batch.cols], atol=1e-4, rtol=1e-4)
    want, = torch.autograd.grad(loss_drawn, v)
    torch.testing.assert_close(turned[1], want[drawn.unique()], atol=1e-4, rtol=1e-4)

def test_kinds_lie_together():
    texts,kinds = make_texts()
    vectors = fit(texts)
    new,of = make_texts(40, seed=1)
    u,known = vectors(new), vectors(texts)
    same = torch.tensor(of[:,None] == kinds)
    cos = u@known.T
    own,other = [(cos*o).sum(1)/o.sum(1) for o in (same,~same)]
    assert (own > other).all() and (kinds[cos.argmax(1)] == of).all()
    assert vectors.losses[-1] < vectors.losses[0]

def test_same_again_and_alone():
    "No chance but the seed's, none that the caller's draws see; a text's vector is its own"
    texts,_ = make_texts()
    before = torch.get_rng_state()
    a,b,other = fit(texts), fit(texts), fit(texts, seed=1)
    assert torch.get_rng_state().equal(before)
    u = a(texts)
    assert u.equal(b(texts)) and not u.equal(other(texts)) and a.losses == b.losses
    torch.testing.assert_close(torch.cat([a([t]) for t in texts[:5]]), u[:5], atol=1e-5, rtol=0)
    assert pickle.loads(pickle.dumps(a))(texts).equal(u)

def test_marks_and_unknown_words():
    "Capital letters change nothing; what no text had has no say; without anything known, zeros"
    texts,_ = make_texts()
    vectors = fit(texts)
    t = texts[0]
    marked = [i for w in t for i in (3,w)]
    torch.testing.assert_close(vectors([t]), vectors([marked]))
    assert not vectors([[], [2], [0,0], [3]]).any()
    assert vectors([t, []])[0].norm() == pytest.approx(1, abs=1e-5) and vectors([t]).isfinite().all()

@pytest.mark.parametrize('kw,match', [(dict(d=1), 'd=1'), (dict(passes=0), 'passes=0'), (dict(min_freq=1000), 'min_freq=1000'), (dict(seed='x'), 'seed')])
def test_refuses(kw, match):
    with pytest.raises(ValueError, match=match): fit(make_texts()[0], **kw)

def test_refuses_other_texts():
    with pytest.raises(ValueError, match='no texts'): fit([])
    with pytest.raises(ValueError, match='44 tokens'): fit([[2,99]])
    vectors = fit(make_texts()[0])
    with pytest.raises(ValueError, match='no texts'): vectors([])
    with pytest.raises(ValueError, match='44 tokens'): vectors([[2,99]])

def test_most_frequent_features():
    texts,_ = make_texts()
    assert len(fit(texts, max_features=30).rows) == 30
    x = fit(texts)._columns(texts)
    assert fit(texts, max_features=30)._columns(texts).getnnz(0).min() >= np.sort(x.getnnz(0))[-30:].min()
