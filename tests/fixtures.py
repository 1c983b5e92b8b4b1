"Small texts, loaders and learners that several test files share"
import random, matplotlib.pyplot as plt, pandas as pd, pytest, torch
from fastai.text.all import BaseTokenizer, Callback, MultiCategoryBlock, RegressionBlock, TextDataLoaders, noop
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.lm import transformer_lm_learner

SMALL = dict(d_model=16, n_heads=2, n_layers=2)
both = pytest.mark.parametrize('kind', ['clf','lm'])

def texts_df(n=80, seed=0):
    "Reviews of 6 to 42 words that tell `label`, `tags` and `score`; a fifth is for validation"
    rng,rows = random.Random(seed), []
    likes,hates,others = 'warm clever lovely fine'.split(), 'dull cold weak poor'.split(), 'a the film story was it with and in of'.split()
    for i in range(n):
        own,about = likes if i%2 else hates, rng.choice(['music','acting'])
        words = [about, own[0], *rng.choices(others + own*3 + [about]*4, k=rng.randint(4, 40))]
        rows.append(dict(text=' '.join(words), label='pos' if i%2 else 'neg', tags=';'.join([about] + ['long']*(len(words) > 20)),
                         score=0.8 if i%2 else 0.2, is_valid=i%5 == 4))
    return pd.DataFrame(rows)

def make_dls(df, **kw):
    "fastai's own loaders"
    return TextDataLoaders.from_df(df, **{**dict(text_col='text', label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), num_workers=0, bs=8), **kw})

def quiet(learn):
    "`learn` without bars and tables"
    learn.logger = noop
    if hasattr(learn, 'progress'): learn.remove_cb(learn.progress)
    return learn

def weights(learn):
    "A copy of all parameters by name"
    return {k:p.detach().cpu().clone() for k,p in learn.model.named_parameters()}

def changed(learn, before):
    "The names of the parameters that are not as they were"
    return {k for k,p in weights(learn).items() if not p.equal(before[k])}

def uncompiled(step, weights, args, dims):
    "In place of `faststep._build`: `step` itself"
    return step

def close(a, b, eps=1e-5):
    "Is `a` the same as `b`, up to `eps` of 1 and of its size?"
    torch.testing.assert_close(a, b, atol=eps, rtol=eps)

def stop(*args):
    "In place of a function or hook: Ctrl-C"
    raise KeyboardInterrupt

@pytest.fixture(autouse=True)
def no_pictures_left():
    "Close the figures of each test"
    yield
    plt.close('all')

@pytest.fixture(scope='session')
def df(): return texts_df()

@pytest.fixture(scope='session')
def dls(df): return make_dls(df)

@pytest.fixture(scope='session')
def dls_lm(df): return make_dls(df, is_lm=True, seq_len=16, bs=8)

@pytest.fixture(scope='session')
def dls_multi(df): return make_dls(df, label_col='tags', label_delim=';', y_block=MultiCategoryBlock)

@pytest.fixture(scope='session')
def dls_reg(df): return make_dls(df, label_col='score', y_block=RegressionBlock)

@pytest.fixture
def make(request, tmp_path):
    "`make(kind, **options)`: a small, quiet learner of kind 'clf', 'lm', 'multi' or 'reg' that saves in `tmp_path`"
    def _make(kind='clf', **kw):
        dls = kw.pop('dls', None) or request.getfixturevalue(dict(clf='dls', lm='dls_lm', multi='dls_multi', reg='dls_reg')[kind])
        factory = transformer_lm_learner if kind == 'lm' else transformer_classifier_learner
        return quiet(factory(dls, **{**SMALL, 'path':tmp_path, **kw}))
    return _make

class Worse(Callback):
    "From the second epoch on, spoils the weights after training"
    def after_train(self):
        if self.epoch == 0: return
        with torch.no_grad():
            for p in self.model.parameters(): p += torch.randn_like(p)
