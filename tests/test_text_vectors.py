"Vectors of texts: features as sets of Python make them, gradients as autograd has them, and texts of one kind lie together"
import math, pickle, numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
import fastai_txf.recipes.text_vectors as module
from fastai_txf.recipes.text_vectors import TextVectors, Triples
import fastai_txf.recipes.guesses as guesses
from fastai_txf.recipes.guesses import ByVectors, Guesses, learn_guesses
from fastai_txf.recipes.reading import choose_reading
from fastai_txf.text.codec import encode_text
from fastai_txf.train.counting import feature_matrix
from hypothesis import given, strategies as st
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

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

def test_seed_in_a_number_of_numpys():
    texts = make_texts(20)[0]
    assert fit(texts, seed=np.int64(3)).v.equal(fit(texts, seed=3).v)

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

@pytest.mark.parametrize('at', [0,5,11,None])
def test_padding_anywhere(at):
    "Each word has its vector, wherever the vocabulary has its padding, or where it has none"
    words = [f'w{i}' for i in range(10)]
    vocab = [*words, 'xxunk']
    if at is not None: vocab.insert(at, 'xxpad')
    ids = [vocab.index(w) for w in words]
    texts = [*np.random.default_rng(0).choice(ids, (60,5))]
    vectors = TextVectors(texts, vocab, d=4, passes=2, min_freq=2)
    torch.testing.assert_close(vectors([[i] for i in ids]).norm(dim=1), torch.ones(10))

@pytest.mark.parametrize('kw,match', [(dict(d=1), 'd=1'), (dict(passes=0), 'passes=0'), (dict(min_freq=1000), 'min_freq=1000'), (dict(seed='x'), 'seed'),
                                      (dict(d=8.5), 'd=8.5'), (dict(passes=1.5), 'passes=1.5'), (dict(min_freq=0), 'min_freq=0'), (dict(minutes=-1), 'minutes=-1'), (dict(minutes=math.nan), 'minutes=nan'),
                                      *[(dict(max_features=n), f'max_features={n}: .*whole') for n in (-1, 0, 1, 1.5)]])
def test_refuses(kw, match):
    with pytest.raises(ValueError, match=match): fit(make_texts()[0], **kw)

def test_texts_that_are_read_once():
    texts,_ = make_texts()
    vectors = fit(iter(texts))
    assert vectors(iter(texts[:3])).equal(vectors(texts[:3]))

def test_refuses_other_texts():
    with pytest.raises(ValueError, match='no texts'): fit([])
    with pytest.raises(ValueError, match='44 tokens'): fit([[2,99]])
    vectors = fit(make_texts()[0])
    with pytest.raises(ValueError, match='no texts'): vectors([])
    with pytest.raises(ValueError, match='44 tokens'): vectors([[2,99]])
    for bad in (['good film'], 'good film', [[4.5,5.]], [[[4,5]]]):
        with pytest.raises(TypeError, match='encode_text'): vectors(bad)

def test_most_frequent_features():
    texts,_ = make_texts()
    assert len(fit(texts, max_features=30).rows) == 30
    x = fit(texts)._columns(texts)
    assert fit(texts, max_features=30)._columns(texts).getnnz(0).min() >= np.sort(x.getnnz(0))[-30:].min()

def test_texts_that_were_learnt_with():
    "Their vectors are there already, near those that a new text of these words gets"
    texts,kinds = make_texts()
    vectors = fit([*texts, []])
    assert vectors.of_texts.shape == (121,16) and not vectors.of_texts[-1].any()
    cos = (vectors.of_texts*vectors([*texts, []])).sum(1)
    assert cos[:-1].min() > 0.8

def test_ends_in_time():
    assert len(fit(make_texts()[0], passes=50, minutes=0).losses) == 1

# Guesses

WORDS = [[''.join(o) for o in kind] for kind in np.random.default_rng(0).choice([*'aeioudlmnrst'], (2,150,7))]

def frame(n, seed):
    "Texts of two kinds, with 150 random words each and some of both: a few texts hold few of the words"
    rng = np.random.default_rng(seed)
    kinds = np.arange(n) % 2
    rows = [' '.join([*rng.choice(WORDS[k], 5), *rng.choice(['the','a','of','in'], 3)]) for k in kinds]
    return pd.DataFrame(dict(text=rows, label=[f'k{k}' for k in kinds]))

def prepared(n=24, **kw):
    df = frame(n, 0)
    if kw: df = df.assign(**kw)
    text = choose_reading(df, dict(text_col='text', label_col='label', label_delim=None), 42, lambda s: None, 60)
    text.vocab = [*text.vocab, *(w for ws in WORDS for w in ws if w not in text.vocab)]
    return text.count()

def others(text, n=800): return encode_text(text.loaders(bs=8), list(frame(n, 1).text))

def right(text, new=frame(400, 2)):
    "How many new texts a wide path gets right"
    ids,y = encode_text(text.loaders(bs=8), list(new.text)), np.array([int(l[1]) for l in new.label])
    wide = text.wide()
    text.count_into(wide, np.arange(len(text.ids)), (0.,1.))
    return np.mean([wide(i[None]).argmax(1).item() == c for i,c in zip(ids, y)])

def both_ways(text, ids):
    "The text with each of the linear models that texts without labels give."
    by,x,rows = guesses._vectors(text, ids, 1., 42)
    return [text.but(x=x, rows=rows, by=o) for o in (by, Guesses(by))]

def test_a_few_labels_speak_for_many_texts():
    "Words that no labelled text has get weights, by the labels that vectors give to texts which have them"
    text,said = prepared(), []
    before = right(text)
    better = learn_guesses(text, others(text), 1., say=said.append)
    assert '800 more texts' in said[0] and text.by is None and better.by is not None
    assert right(text) == before and right(better) > before + 0.1

@pytest.mark.parametrize('way', [0,1])
def test_each_way_alone(way):
    text = prepared()
    assert right(both_ways(text, others(text))[way]) > right(text) + 0.1

@pytest.mark.parametrize('way', [0,1])
def test_the_wide_path_says_what_was_scored(way):
    "What is published is what held-out texts have judged: the same outputs"
    text = prepared()
    text = both_ways(text, others(text))[way]
    train,held = np.arange(16), np.arange(16, 24)
    wide = text.wide()
    text.count_into(wide, train, (0.,1.))
    got = torch.cat([wide(text.ids[i][None]) for i in held])
    torch.testing.assert_close(got, text.linear(train, held), atol=1e-4, rtol=1e-4)
    assert text.guesses(train).shape == (800,2)
    torch.testing.assert_close(text.guesses(train).sum(1), torch.ones(800))

def test_a_readout_of_vectors_is_one_of_their_sums():
    "Weights of features, added up over the root of their number, are the logistic regression of the texts' vectors"
    text = prepared()
    text = both_ways(text, others(text))[0]
    y = text.y.numpy()
    w,b = text.by.readout(np.arange(24), y, 2)
    torch.testing.assert_close(text.linear(np.arange(24), np.arange(24)), torch.tensor(text.by.labelled@w + b).float(), atol=1e-4, rtol=1e-4)
    model = LogisticRegression(C=10., max_iter=1000).fit(text.by.labelled, y)
    np.testing.assert_allclose(text.by.labelled@w[:,1]*2 + b[1]*2, model.decision_function(text.by.labelled), atol=1e-6)

def test_a_linear_model_is_fitted_once(monkeypatch):
    "The same rows again cost nothing; other rows, another strength or texts counted anew are fitted"
    import fastai_txf.recipes.reading as reading
    text,fits,fit_linear = prepared(), [], reading.fit_linear
    monkeypatch.setattr(reading, 'fit_linear', lambda *args: fits.append(1) or fit_linear(*args))
    some,held = np.arange(16), np.arange(16, 24)
    first = text.linear(some, held)
    assert torch.equal(text.linear(some, held), first) and len(fits) == 1
    text.linear(np.arange(15), held)
    text.linear(some, held)
    text.strength = 2.,1.
    text.linear(some, held)
    text.count().linear(some, held)
    assert len(fits) == 5

def test_the_curve_of_guesses_is_that_of_vectors():
    text = prepared()
    by_vectors,by_guesses = both_ways(text, others(text))
    text.make_folds(42)
    assert by_guesses.quick().by is by_vectors.by and text.quick().by is None and by_guesses.by is not by_vectors.by

class Vectors:
    "Made by hand: each feature is a number of the vector."
    often,v = np.arange(4), torch.eye(4)
    def sums(self, x): return x.toarray()

def test_guesses_know_no_held_out_label():
    "The labels of the texts to learn from decide, and nothing else"
    g = Guesses(ByVectors(Vectors(), csr_matrix(np.eye(4)[[0,1,2,3,0,3]]), 4))
    assert g.labels([0,1,2,3], np.array([0,0,1,1]), 2).tolist() == [0,1]
    assert g.labels([0,3], np.array([1,0]), 2).tolist() == [1,0]
    assert g.labels([0,1], np.array([1,1]), 2).tolist() == [1,1]
    assert g.labels([0,3], np.array([2,1]), 4).tolist() == [2,1]             # classes that nobody has are never guessed

def test_guesses_that_do_not_help(monkeypatch):
    text = prepared()
    monkeypatch.setattr(type(text), 'right', lambda *args: 0.9)
    res = learn_guesses(text, others(text, 100), 1., say=lambda s: None)
    assert res.by is None and res.x is text.x and res.without(0) is text

def test_no_guesses():
    "Numbers have no guesses; nor have texts that are too few in the time"
    numbers,text = prepared(label=np.arange(24)+0.5), prepared()
    assert learn_guesses(numbers, [], 1.) is numbers and learn_guesses(text, others(text, 100), 1e-6) is text
