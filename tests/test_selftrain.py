"Self-training: probabilities as targets, guesses of several classifiers, and loaders that hold labels and guesses"
import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from torch import nn
from hypothesis import given, strategies as st
from fastai.text.all import (BaseTokenizer, CrossEntropyLossFlat, F1Score, FocalLoss, FocalLossFlat, LabelSmoothingCrossEntropyFlat, MultiCategoryBlock, RegressionBlock, accuracy,
                             load_learner, set_seed)
import fastai_txf.explain.losses # it gives learners their `top_losses`
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.recipes.baseline import baseline
from fastai_txf.train.losses import SoftCrossEntropy
from fastai_txf.recipes.selftrain import add_pseudo_labels, pseudo_labels
from fastai_txf.recipes.suggest import suggest_config
from fixtures import *

NEW = ['a warm film', 'dull', 'the story was cold and poor and weak', 'it was lovely'] # texts without labels, of different lengths
probs = torch.tensor([[0.1,0.9],[0.8,0.2],[1.,0.],[0.4,0.6]])

# The loss

@given(st.integers(0, 2**32-1), st.integers(1, 6), st.integers(2, 5))
def test_loss_is_the_formula(seed, bs, n):
    "Minus the mean of the log-probabilities, weighted by the targets; for classes it is fastai's"
    g = torch.Generator().manual_seed(seed)
    act,targ,y = torch.randn(bs, n, generator=g, dtype=torch.float64), torch.rand(bs, n, generator=g, dtype=torch.float64).softmax(-1), torch.randint(n, (bs,), generator=g)
    want = -(targ*(act - act.exp().sum(-1, keepdim=True).log())).sum(-1)
    assert torch.allclose(SoftCrossEntropy()(act, targ), want.mean())
    assert torch.allclose(SoftCrossEntropy(reduction='none')(act, targ), want)
    assert torch.allclose(SoftCrossEntropy()(act, F.one_hot(y, n)), F.cross_entropy(act, y))
    assert SoftCrossEntropy()(act, y) == CrossEntropyLossFlat()(act, y)

# The guesses

@pytest.mark.parametrize('kind', ['clf','multi','reg'])
def test_guesses_are_the_mean_of_the_predictions(make, kind):
    learners = [make(kind) for _ in range(3)]
    got = pseudo_labels(learners, NEW)
    want = torch.stack([torch.stack([learn.predict(t)[2] for learn in learners]).mean(0) for t in NEW])
    assert type(got) is torch.Tensor and torch.allclose(got, want.as_subclass(torch.Tensor), atol=1e-5)
    assert torch.allclose(pseudo_labels(learners[0], pd.DataFrame(dict(text=NEW)), bs=1), learners[0].predict(NEW)[2].as_subclass(torch.Tensor), atol=1e-5)

class OwnLabels(nn.Module):
    "A loss that says nothing of probabilities"
    def forward(self, pred, targ): return F.binary_cross_entropy_with_logits(pred, targ.float())

def own_numbers(pred, targ): return F.mse_loss(pred.view(-1), targ.view(-1))

@pytest.mark.parametrize('kind,loss', [('clf',FocalLoss()), ('multi',OwnLabels()), ('reg',own_numbers)], ids=['clf','multi','reg'])
def test_guesses_with_a_loss_without_activation(make, kind, loss):
    "They are what `predict` says, and their mean with a learner that has fastai's loss is one of probabilities"
    own,usual = make(kind, loss_func=loss), make(kind)
    own.model.load_state_dict(usual.model.state_dict())
    want = usual.predict(NEW)[2].as_subclass(torch.Tensor)
    for learners in (own, [own,usual]): assert torch.allclose(pseudo_labels(learners, NEW), want, atol=1e-6)

def test_teachers_from_files(make, tmp_path):
    learn = make()
    learn.export('teacher.pkl')
    teachers,want = [learn, load_learner(tmp_path/'teacher.pkl')], pseudo_labels(learn, NEW)
    for texts in (NEW, iter(NEW)): assert torch.allclose(pseudo_labels(teachers, texts), want, atol=1e-6)

def test_guesses_of_nothing_or_of_strangers(make):
    with pytest.raises(ValueError, match='no learner'): pseudo_labels([], NEW)
    with pytest.raises(ValueError, match='no text'): pseudo_labels(make(), [])
    with pytest.raises(ValueError, match='no rows'): pseudo_labels(make(), pd.DataFrame(dict(text=[])))
    with pytest.raises(TypeError, match='TransformerLMLearner labels no texts'): pseudo_labels([make(), make('lm')], NEW)
    with pytest.raises(ValueError, match='different labels.*neg.*music'): pseudo_labels([make(), make('multi')], NEW)

def test_learners_of_other_kinds(df, make):
    "One label or several for a text, one number or two: there is no mean"
    df = df.assign(tags=df.label.map(lambda o: [o]), more=0.5)
    several = make('multi', dls=make_dls(df, label_col='tags', y_block=MultiCategoryBlock))
    with pytest.raises(ValueError, match='one label.*several labels.*no mean'): pseudo_labels([make(), several], NEW)
    with pytest.raises(ValueError, match='1 and 2 outputs: .*no mean'): pseudo_labels([make('reg'), make('reg', dls=make_dls(df, label_col=['score','more'], y_block=RegressionBlock))], NEW)
    assert pseudo_labels([several]*2, NEW).shape == (4,2)

# The loaders

def items_of(dl):
    "The texts and targets of an epoch, as a sorted list"
    return sorted((x[x != 1].tolist(), [round(v, 4) for v in y]) for xs,ys in dl for x,y in zip(xs.as_subclass(torch.Tensor), ys.tolist()))

@pytest.mark.parametrize('mine', [False,True])
def test_an_epoch_holds_labels_and_guesses(df, mine):
    "Each training text comes with its label as a probability of 1, each new one with its guess, as the same tokenizer and vocabulary read it"
    kw = dict(text_col='text', label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=7)
    dls = TransformerDataLoaders.from_df(df, **kw) if mine else make_dls(df, **kw)
    both = add_pseudo_labels(dls, NEW, probs)
    want = [(x.tolist(), F.one_hot(torch.tensor(int(y)), 2).tolist()) for x,y in dls.train_ds]
    want += [(dls.test_dl([t]).dataset[0][0].tolist(), [round(v, 4) for v in p]) for t,p in zip(NEW, probs.tolist())]
    got = items_of(both.train.new(shuffle=False, drop_last=False))
    assert got == sorted((x, [round(float(v), 4) for v in y]) for x,y in want)
    assert type(both) is type(dls) and both.valid is dls.valid and both.vocab == dls.vocab and both.path == dls.path
    assert len(dls.train_ds) == len(df[~df.is_valid])                       # `dls` is as it was
    lens = [len(x) for x,_ in (both.train_ds[i] for i in range(len(both.train_ds)))]
    assert list(both.train.res) == lens                                     # by which batches are made

def test_guesses_are_kept_as_they_were(dls):
    "What a training, or the owner of the guesses, writes over texts and guesses leaves the loaders as they were"
    mine = probs.clone()
    ds = add_pseudo_labels(dls, NEW, mine).train_ds
    mine.zero_()
    for t in ds[-1]: t.zero_()
    assert ds[-1][0].any() and ds[-1][1].equal(probs[-1])

@pytest.mark.parametrize('i', [-1, -3, 3, np.int64(3), slice(2), slice(-2, None), slice(None, None, -1), [0,-1], [], range(68), np.array([5,-2]), torch.tensor([5,66])])
def test_texts_by_any_number(dls, i):
    "One number, from either end, is one text; a slice or a list is a list of them, as in the loaders before"
    ds = add_pseudo_labels(dls, NEW, probs).train_ds
    items = [ds[j] for j in range(len(ds))]
    def plain(o): return o[0].tolist(), o[1].tolist()
    if isinstance(i, (int,np.integer)): assert plain(ds[i]) == plain(items[i])
    else: assert [*map(plain, ds[i])] == [*map(plain, items[i] if isinstance(i, slice) else [items[j] for j in i])]

@pytest.mark.parametrize('i', [68,-69,[0,68]])
def test_no_such_text(dls, i):
    assert len(ds := add_pseudo_labels(dls, NEW, probs).train_ds) == 68
    with pytest.raises(IndexError, match='no text (68|-69) of 68'): ds[i]

def test_certain_guesses_train_as_labels_do(df, tmp_path):
    "Half of the texts with their labels and the others with guesses that are certain: the losses and weights of all with labels"
    df = df.assign(text=[f'{t} {i}' for i,t in enumerate(df.text)])
    kw = dict(text_col='text', label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=8, min_freq=1)
    train = df[~df.is_valid]
    vocab = TransformerDataLoaders.from_df(df, **kw).vocab[0]
    dls = TransformerDataLoaders.from_df(df, text_vocab=vocab, **kw)
    few = TransformerDataLoaders.from_df(pd.concat([train[:32], df[df.is_valid]]), text_vocab=vocab, **kw)
    both = add_pseudo_labels(few, train[32:], F.one_hot(torch.tensor([dls.vocab[1].o2i[o] for o in train.label[32:]]), 2))
    def fit(dls):
        set_seed(0)
        learn = quiet(transformer_classifier_learner(dls, **SMALL, p=0., path=tmp_path))
        set_seed(3)
        learn.fit(2, 1e-3)
        return learn
    a,b = fit(dls),fit(both)
    assert np.allclose(a.recorder.losses, b.recorder.losses, rtol=1e-4)
    for k,w in weights(a).items(): assert torch.allclose(w, weights(b)[k], atol=1e-5), k

@pytest.mark.parametrize('kind', ['clf','multi','reg'])
def test_every_kind_of_label(request, make, kind, tmp_path, capsys):
    "Guesses, training, shown batches and results, an exported student"
    dls = request.getfixturevalue(dict(clf='dls', multi='dls_multi', reg='dls_reg')[kind])
    both = add_pseudo_labels(dls, NEW, pseudo_labels([make(kind), make(kind)], NEW))
    assert type(both.train_ds.loss_func) is (SoftCrossEntropy if kind == 'clf' else type(dls.train_ds.loss_func))
    learn = make(kind, dls=both)
    learn.fit(3, 1e-2)
    losses = np.array([float(o) for o in learn.recorder.losses]).reshape(3, -1).mean(1)
    assert losses[-1] < losses[0] and np.isfinite(losses).all()  # the teachers know nothing to validate
    both.show_batch(max_n=2); learn.show_results(max_n=2); learn.show_results(ds_idx=0, max_n=2)
    shown = capsys.readouterr().out
    assert 'text' in shown and (kind == 'reg' or any(str(o) in shown for o in both.vocab[1]))
    learn.export('student.pkl')
    loaded = load_learner(tmp_path/'student.pkl')
    assert len(loaded.dls.train_ds) == 0
    assert torch.allclose(loaded.predict(NEW)[2], learn.predict(NEW)[2], atol=1e-6)
    assert baseline(both).iloc[:,:2].equals(baseline(dls).iloc[:,:2])       # which reads labels, not guesses

def test_guesses_that_do_not_fit(dls, dls_reg, dls_lm):
    for bad,why in ((probs[:3], r'\(3, 2\).*\(4, 2\)'), (probs[:,:1], r'\(4, 1\).*\(4, 2\)'), (probs*torch.nan, 'NaN'), (probs*2-0.5, 'no probabilities'), (probs*0.5, 'add up to 1')):
        with pytest.raises(ValueError, match=why): add_pseudo_labels(dls, NEW, bad)
    with pytest.raises(ValueError, match=r'\(4, 2\)'): add_pseudo_labels(dls_reg, NEW, probs)
    with pytest.raises(ValueError, match='no text'): add_pseudo_labels(dls, [], probs[:0])
    with pytest.raises(ValueError, match='no targets'): add_pseudo_labels(dls_lm, NEW, probs)
    assert len(add_pseudo_labels(dls_reg, NEW, torch.tensor([3.,-1,0,2])).train_ds) == len(dls_reg.train_ds)+4

def test_more_of_them(dls, dls_multi, make):
    "One text, then others: in the end the labels and all guesses; batches and predictions are shown"
    for kind,base,p in (('clf',dls,probs), ('multi',dls_multi,torch.rand(4, 3))):
        twice = add_pseudo_labels(add_pseudo_labels(base, NEW[0], p[:1]), NEW[1:], p[1:])
        n = len(base.train_ds)
        assert len(twice.train_ds) == n+4
        for i,want in enumerate(p): assert torch.equal(twice.train_ds[n+i][1], want)
        x,y = twice.train_ds[n]
        text,label = twice.train_ds.decode((x, y))
        assert text == base.train_ds.decode(base.train_ds[0])[0].__class__(' '.join(twice.vocab[0][i] for i in x))
        likely = twice.vocab[1][p[0].argmax()] if kind == 'clf' else [twice.vocab[1][i] for i in (p[0] > 0.5).nonzero()[:,0]]
        assert (label if kind == 'clf' else list(label)) == likely
        learn = make(kind, dls=twice)
        learn.fit(1, 1e-2)
        assert np.isfinite(learn.validate()[0])

@pytest.mark.parametrize('call', [lambda o: o.validate(0), lambda o: o.validate(dl=o.dls.train), lambda o: o.get_preds(0), lambda o: o.show_results(0), lambda o: o.top_losses(ds_idx=0)])
def test_metrics_of_labels(make, dls, call):
    "The training set has probabilities, which they do not compare: said so; fits and validation do not mind"
    both = add_pseudo_labels(dls, NEW, probs)
    learn = make(dls=both, metrics=[accuracy,F1Score()])
    learn.fit(1)
    assert len(learn.validate()) == 3 and len(learn.get_preds()[0]) == len(dls.valid_ds)
    with pytest.raises(ValueError, match='accuracy, f1_score.*probabilities.*learn.metrics'): call(learn)
    def overlap(pred, targ): return (pred.softmax(-1)*targ).sum(-1).mean()
    for metrics in (None, overlap): call(make(dls=both, metrics=metrics))

@pytest.mark.parametrize('loss', [CrossEntropyLossFlat(label_smoothing=0.1), LabelSmoothingCrossEntropyFlat(), FocalLossFlat()])
def test_loss_of_labels(make, dls, loss):
    "A loss that takes no probabilities, and the one that does instead"
    both = add_pseudo_labels(dls, NEW, probs)
    for f in (lambda o: o.fit(1), lambda o: o.validate(0)):
        with pytest.raises(ValueError, match=rf'{type(loss).__name__}.*SoftCrossEntropy\(label_smoothing'): f(make(dls=both, loss_func=loss))
    learn = make(dls=both, loss_func=SoftCrossEntropy(label_smoothing=0.1))
    learn.fit(1)
    assert np.isfinite(learn.recorder.losses).all() and np.isfinite(learn.validate(0)[0])
    make(loss_func=loss).fit(1)                                             # labels alone

@pytest.mark.parametrize('cast', [lambda p: pd.DataFrame(p, index=[7,8,9,10]), np.asarray, lambda p: p.tolist(), torch.as_tensor, lambda p: [*torch.as_tensor(p)], lambda p: pd.Series([*torch.as_tensor(p)], index=[7,8,9,10]), lambda p: torch.tensor(p, requires_grad=True)*1],
                         ids=['frame','array','lists','tensor','tensors','series','graph'])
def test_guesses_in_a_frame(dls, cast):
    new = add_pseudo_labels(dls, NEW, cast(probs.numpy()))
    assert not new.train_ds[-1][1].requires_grad
    assert torch.equal(torch.stack([new.train_ds[len(dls.train_ds)+i][1] for i in range(4)]), probs)

def test_numbers_in_a_column_of_some_rows(dls_reg):
    "A series is taken row by row, whatever its rows are called"
    for index in ([7,8,9,10], [3,0,2,1]):
        new = add_pseudo_labels(dls_reg, NEW, pd.Series([.1,.2,.3,.4], index=index))
        assert [round(float(new.train_ds[len(dls_reg.train_ds)+i][1]), 4) for i in range(4)] == [.1,.2,.3,.4]

@pytest.mark.cuda
def test_guesses_on_another_device(dls):
    assert add_pseudo_labels(dls, NEW, probs.cuda()).train_ds[-1][1].device.type == 'cpu'

def test_guesses_under_their_labels(dls):
    "The columns of a frame that are called as the labels are found by their names; under other names they are refused"
    names = [*dls.vocab[1]]
    df = pd.DataFrame(probs.numpy(), columns=names)
    new = add_pseudo_labels(dls, NEW, df[names[::-1]])
    assert torch.equal(torch.stack([new.train_ds[len(dls.train_ds)+i][1] for i in range(4)]), probs)
    with pytest.raises(ValueError, match='columns of the pseudo-labels are .*a.*the labels .*name them alike'): add_pseudo_labels(dls, NEW, df.set_axis(['a','b'], axis=1))

def test_numbers_under_their_columns(df):
    "Columns that are called as those of training are found by their names; others are taken as they stand"
    dls = TransformerDataLoaders.from_df(df.assign(more=5*df.score), text_col='text', label_col=['score','more'], valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=8)
    for cols in (['more','score'], ['a','b']):
        new = add_pseudo_labels(dls, NEW, pd.DataFrame([[4.,0.8]]*4, columns=cols))
        assert new.train_ds[-1][1].tolist() == pytest.approx([0.8,4.] if 'score' in cols else [4.,0.8])

def test_no_texts_to_train_on(make, tmp_path):
    "An exported learner takes no texts along: what needs some says so"
    make().export('l.pkl')
    dls = load_learner(tmp_path/'l.pkl').dls
    for f in (suggest_config, transformer_classifier_learner, lambda o: add_pseudo_labels(o, NEW, probs)):
        with pytest.raises(ValueError, match='there are no training texts.*an exported learner takes none along'): f(dls)
    assert transformer_classifier_learner(dls, **SMALL).predict(NEW[0])
