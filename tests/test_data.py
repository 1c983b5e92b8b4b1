"""Texts in: the docstring data set, checks of frames and loaders, tokens in use as in training."""
import importlib.util, os, pickle, re, sys, time, warnings
from decimal import Decimal
from functools import partial
from inspect import signature

import numpy as np, pandas as pd, pytest, torch
from torch import nn
from fastai.text.all import (BOS, PAD, SGD, UNK, BaseTokenizer, BCEWithLogitsLossFlat, CategoryBlock, ClassificationInterpretation, ColReader, ColSplitter,
    DataBlock, DataLoaders, L, Learner, Module, MSELossFlat, MultiCategoryBlock, Path, RandomSplitter, RegressionBlock, SortedDL,
    ItemTransform, Numericalize, Pad_Chunk, Pipeline, TensorCategory, TensorMultiCategory, TensorText, TextBlock, TextDataLoaders, Tokenizer,
    TransformBlock, get_text_files, ifnone, load_learner, set_seed)

from fastcore.basics import defaults
from fastai_txf.all import *
from fixtures import SMALL, make_dls, quiet, texts_df
from fastai_txf.text import folders
from fastai_txf.text.corpus import _clean, _name_pattern
from fastai_txf.text.batches import PadTexts
from fastai_txf.text.loaders import _some_ids
from fastai_txf.text.pairs import Seq2SeqDataLoaders
from fastai_txf.recipes.pretrain import self_pretrain
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.target import labelled_ids
from fastai_txf.text.tokens import BPETokenizer, CharTokenizer

FAST = dict(tok_tfm=BaseTokenizer(), n_workers=0, min_freq=1, bs=4)


def frame(n=20, **cols):
    "Short texts with one label, every fifth row for validation"
    df = pd.DataFrame(dict(text=[f'a {"good" if i%2 else "bad"} film number {i%4}' for i in range(n)],
                           label=['pos' if i%2 else 'neg' for i in range(n)], is_valid=[i%5 == 4 for i in range(n)]))
    return df.assign(**cols)


def check(df, text='text', label='label', valid='is_valid', **kw): check_df(df, text, label, valid, **kw)


class Bag(Module):
    "The mean of the tokens' embeddings, and a linear layer"
    def __init__(self, dls, n_out): self.emb,self.lin = nn.Embedding(len(text_vocab(dls)), 8),nn.Linear(8, n_out)
    def forward(self, x): return self.lin(self.emb(x).mean(1))


def learner(dls, n_out, **kw): return Learner(dls, Bag(dls, n_out), opt_func=SGD, **kw)


def one_step(dls, n_out):
    "Train on one epoch; whether every weight that was used moved and stayed finite"
    learn = learner(dls, n_out)
    before = learn.model.lin.weight.detach().clone()
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 0.1)
    after = learn.model.lin.weight
    assert not torch.equal(before, after.cpu()) and torch.isfinite(after).all()
    return learn


# ---------------------------------------------------------------- docstrings

def test_packages_from_a_generator():
    pd.testing.assert_frame_equal(docstrings_df((o for o in ('fastai','fastcore')), max_per_class=4), docstrings_df(['fastai','fastcore'], max_per_class=4))

@pytest.fixture(scope='module')
def docs(): return docstrings_df(max_per_class=40)


def test_docstrings_are_balanced_and_complete(docs):
    assert list(docs.columns) == ['text', 'label', 'is_valid', 'source']
    assert set(docs.label) == {'torch', 'scipy', 'pandas', 'matplotlib', 'sklearn', 'numpy'}
    assert docs.groupby(['label', 'is_valid']).size().unstack().to_numpy().tolist() == [[32, 8]]*6
    assert docs.text.str.split().str.len().min() >= 20
    assert list(docs.index) == list(range(240))
    check_df(docs, 'text', 'label', 'is_valid')


def test_docstrings_do_not_leak(docs):
    assert not set(docs.source[docs.is_valid]) & set(docs.source[~docs.is_valid])
    assert not docs.text.map(lambda o: tuple(o.split())).duplicated().any()
    assert not docs.source.str.contains('/tests/|/testing/|/externals/|array_api_compat').any()
    assert (docs.source.str.split('/').str[0] == docs.label).all()
    assert docs.source.value_counts().max() <= 2 # a twentieth of 40


def test_docstrings_are_real(docs):
    "Each text is in the file that it is said to come from"
    for row in docs[:20].itertuples():
        assert row.text in docstrings(package_files(row.label)[row.source].read_bytes())


def test_docstrings_repeat_for_a_seed():
    kw = dict(packages=('numpy', 'pandas'), max_per_class=20)
    pd.testing.assert_frame_equal(docstrings_df(**kw), docstrings_df(**kw))
    assert not docstrings_df(**kw).text.equals(docstrings_df(seed=1, **kw).text)


def test_docstrings_options():
    df = docstrings_df(('numpy', 'fastai'), max_per_class=20, min_words=5, max_words=12, valid_pct=0.5, mask_names=True)
    n = df.text.str.split().str.len()
    assert n.min() >= 5 and n.max() <= 12
    assert df.is_valid.mean() == 0.5 and set(df.label) == {'numpy', 'fastai'}
    assert not df.text.str.contains(_name_pattern(['numpy', 'fastai'])).any()


@pytest.mark.parametrize('src', ['x = a' + '+a'*200_000, 'x = ' + '-'*200_000 + '1', 'x = (', b'x = "\xff"'], ids=['long','deep','syntax','bytes'])
def test_docstrings_of_what_does_not_parse(src): assert docstrings(src) == []


def test_docstrings_few_rows():
    "Both sets get some; what cannot be is refused by name"
    for n,share in ((2,0.2), (20,0.02), (4,0.9)):
        df = docstrings_df(('numpy','fastai'), max_per_class=n, valid_pct=share, min_words=5)
        assert df.groupby('label').is_valid.nunique().tolist() == [2,2] and len(df) <= 2*n
    for kw,says in ((dict(max_per_class=1), 'max_per_class=1'), (dict(max_words=-1), 'max_words=-1'), (dict(max_words=0), 'max_words=0')):
        with pytest.raises(ValueError, match=says): docstrings_df(('numpy','fastai'), **kw)
    with pytest.raises(ValueError, match=r"only \['numpy'\]"): docstrings_df('numpy')


def test_scarce_package_sets_the_number():
    df = docstrings_df(('fastcore', 'fastai'), max_per_class=5000, min_words=15)
    assert df.label.value_counts().nunique() == 1 and len(df) < 500


def test_docstrings_need_no_import(docs, tmp_path, monkeypatch):
    "A package that fails on import is read; no module is loaded on the way"
    (tmp_path/'explosive'/'__init__.py').mk_write('raise RuntimeError\ndef f(): "Never called, only read."')
    (tmp_path/'explosive'/'b.py').mk_write('raise RuntimeError\ndef g(): "Nor is this one called."')
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    df = docstrings_df(('explosive', 'fastai', 'pandas', 'torch'), max_per_class=2, min_words=4, valid_pct=0.5)
    assert sorted(df.source[df.label == 'explosive']) == ['explosive/__init__.py', 'explosive/b.py']
    assert set(sys.modules) == before


def test_docstrings_errors(monkeypatch):
    with pytest.raises(ValueError, match="'nmpy' is no top-level package"): docstrings_df(('numpy', 'nmpy'))
    with pytest.raises(ValueError, match="'torch.nn' is no top-level"): package_files('torch.nn')
    with pytest.raises(ValueError, match=r"only \['numpy'\]"): docstrings_df(('numpy',))
    with pytest.raises(ValueError, match='valid_pct=1'): docstrings_df(valid_pct=1)
    with pytest.raises(ValueError, match='min_words=3000'): docstrings_df(('fastcore', 'fastai'), min_words=3000, max_per_class=2)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, 'find_spec', lambda o, *a: None if o == 'sklearn' else find(o, *a))
    with pytest.warns(UserWarning, match='sklearn'): df = docstrings_df(('numpy', 'sklearn', 'fastai'), max_per_class=5, min_words=5)
    assert set(df.label) == {'numpy', 'fastai'}
    with pytest.warns(UserWarning), pytest.raises(ValueError, match='nothing to tell apart'): docstrings_df(('numpy', 'sklearn'))


def test_docstrings_of_odd_sources():
    assert docstrings('def (') == [] and docstrings(b'\x00') == []
    assert docstrings('# -*- coding: latin-1 -*-\n"caf\xe9"'.encode('latin-1')) == ['café']
    assert docstrings('class A:\n  async def f():\n    "in"') == ['in']


def test_mask_and_crop():
    assert _clean('Torch, torch.nn, torchvision', _name_pattern(['torch']), None) == 'package, package.nn, torchvision'
    assert _clean('a\n  b c', None, 2) == 'a\n  b' and _clean('a b', None, 9) == 'a b' and _clean('', None, 3) == ''


# ---------------------------------------------------------------- frames

@pytest.mark.parametrize('index', [None, list('abcdefghijklmnopqrst'), range(100, 120), [0]*20])
@pytest.mark.parametrize('cast', [bool, int, float])
def test_good_frames_pass(index, cast):
    df = frame().astype(dict(is_valid=cast))
    if index is not None: df.index = index
    check(df); check(df, 0, 1, 2); check(df, ['text', 'label'], None)
    dls = TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', **FAST)
    assert (len(dls.train_ds), len(dls.valid_ds)) == (16, 4)


def test_empty_text_is_a_text():
    df = frame()
    df.loc[3, 'text'] = ''
    check(df)
    dls = TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', **FAST)
    assert len(dls.train_ds[3][0]) >= 1 # xxbos


@pytest.mark.parametrize('missing', [None, np.nan, pd.NA])
@pytest.mark.parametrize('col,what', [('text', 'text'), ('label', 'label')])
def test_missing_values(missing, col, what):
    df = frame()
    df.index = [f'row{i}' for i in df.index]
    df[col] = df[col].astype(object)
    df.loc[['row3', 'row7'], col] = missing
    with pytest.raises(ValueError, match=rf"column '{col}' has no {what}.*2 of 20 rows \(index 'row3', 'row7'\).*dropna"): check(df)


def test_only_the_first_rows_are_named():
    with pytest.raises(ValueError, match=r'20 of 20 rows \(index 0, 1, 2, 3, 4, \.\.\.\)'): check(frame(text=None))


@pytest.mark.parametrize('value', [3.5, 7, ['a', 'list'], True])
def test_text_that_is_none(value):
    df = frame()
    df['text'] = df['text'].astype(object)
    df.at[2, 'text'] = value
    how = r'str\.join' if isinstance(value, list) else r'astype\(str\)'
    with pytest.raises(ValueError, match=rf"'text' holds {re.escape(repr(value))} \({type(value).__name__}\).*index 2\).*{how}"): check(df)


def test_wrong_columns():
    for kw in (dict(text='review'), dict(label='review'), dict(valid='review')):
        with pytest.raises(ValueError, match=r"no columns are called 'review'.*\['text', 'label', 'is_valid'\]"): check(frame(), **kw)
    with pytest.raises(ValueError, match='no columns are called 9'): check(frame(), text=9)
    with pytest.raises(ValueError, match='label_col=.. names no column'): check(frame(), label=[])
    with pytest.raises(ValueError, match="2 columns are called 'text'"): check(pd.concat([frame(), frame()[['text']]], axis=1))


def test_empty_frame():
    with pytest.raises(ValueError, match=r"no rows \(columns \['text', 'label', 'is_valid'\]\)"): check(frame(0))
    with pytest.raises(ValueError, match='no rows'): TransformerDataLoaders.from_df(frame(0), **FAST)


@pytest.mark.parametrize('value,shown', [('True', "'True' \\(str\\)"), ('valid', "'valid'"), (2, '2 \\(int\\)'), (np.nan, 'nan \\(float\\)')])
def test_bad_valid_col(value, shown):
    df = frame()
    df['is_valid'] = df['is_valid'].astype(object)
    df.loc[5, 'is_valid'] = value
    with pytest.raises(ValueError, match=rf"'is_valid' must be True/False or 1/0.*{shown}.*index 5\): .*valid_col=df\['is_valid'\]"): check(df)


masks = dict(tensor=torch.tensor, boolean=lambda o: pd.array(o, dtype='boolean'), index=pd.Index, categories=pd.Categorical, tuple=tuple, numbers=lambda o: torch.tensor(o).long())

@pytest.mark.parametrize('kind', masks)
def test_masks_of_other_kinds(kind):
    df = frame()
    mask = masks[kind](df.is_valid.tolist())
    check(df, valid=mask)
    dls = TransformerDataLoaders.from_df(df, label_col='label', valid_col=mask, **FAST)
    assert len(dls.valid_ds) == df.is_valid.sum()
    with pytest.raises(ValueError, match='valid_col has 20 values for 19 rows'): check(df[:19], valid=mask)

@pytest.mark.parametrize('name', [np.str_('is_valid'), 2], ids=['name','position'])
def test_names_of_the_valid_column(name): check(frame(), valid=name)

def test_bad_valid_mask():
    "A mask is checked as a column is, and never taken by position where its index says something else"
    df = frame()
    good = df.is_valid
    for ok in (good, good.astype(int), good.to_numpy(), good.tolist(), good.astype('boolean'), good.to_numpy(dtype=float), L(good.tolist())): check(df, valid=ok)
    check(df.set_index('label', drop=False), valid=good.set_axis(df.label))
    def bad(mask, match):
        with pytest.raises(ValueError, match=match): check(df, valid=mask)
        with pytest.raises(ValueError, match=match): TransformerDataLoaders.from_df(df, label_col='label', valid_col=mask, **FAST)
    bad(good.where(df.index != 3), r"valid_col must be True/False or 1/0.*holds nan \(float\) in 1 of 20 rows \(index 3\).*fillna\(False\)")
    bad(good.astype(str), r"holds 'False' \(str\) in 20 of 20 rows.*valid_col=pd.Series\(valid_col, index=df.index\) == 'True'")
    bad(good.astype(str).tolist(), "holds 'False'")
    bad(np.arange(20), r"holds 2 \(int\) in 18 of 20")
    bad(good.sample(frac=1, random_state=0), r'valid_col is a series with another index than the data frame.*reindex\(df.index\).*to_numpy\(\)')
    bad(good[:9], 'another index')
    bad([0, 5, 7], r'valid_col has 3 values for 20 rows.*np.isin\(np.arange\(20\), valid_col\)')
    bad(['is_valid'], 'valid_col has 1 values for 20 rows')


@pytest.mark.parametrize('valid,remedy', [(['0', '1']*10, "df['is_valid'] == '1'"), (['train', 'valid']*10, "df['is_valid'] == 'valid'"), ([False, None]*10, "df['is_valid'].fillna(False)")])
def test_remedies_for_valid_col(valid, remedy):
    "What the message advises is right"
    df = frame(is_valid=valid)
    with pytest.raises(ValueError, match=re.escape(f'pass valid_col={remedy}')): check(df)
    if 'fillna' not in remedy: assert eval(remedy).tolist() == [False, True]*10


@pytest.mark.parametrize('value,which', [(True, 'all'), (False, 'none')])
def test_one_set_is_empty(value, which):
    with pytest.raises(ValueError, match=f'{which} of 20 rows'): check(frame(is_valid=value))
    with pytest.raises(ValueError, match=f'{which} of 20 rows'):
        TransformerDataLoaders.from_df(frame(is_valid=value), valid_col='is_valid', **FAST)


def test_valid_col_of_two_dimensions():
    df = frame()
    with pytest.raises(ValueError, match=r"valid_col has the shape \(20, 1\): give one value for each row, or the name of a column"): check(df, valid=df[['is_valid']])


def test_numbers_that_are_names_and_positions():
    "Columns of a file without a header, one left out: 2 was the third column, where pandas calls another one 2; the remedy works"
    d = frame()
    df = pd.DataFrame({0:'id', 2:d.text, 3:d.label, 4:'more'})
    with pytest.raises(ValueError, match="3 is the name of one column and the position of another, '4'.*'3' or '4'"):
        TransformerDataLoaders.from_df(df, text_col=2, label_col=3, **FAST)
    for cols in (dict(text_col='2', label_col='3'), dict(text_col=1, label_col='3')):
        dls = TransformerDataLoaders.from_df(df, seed=1, **cols, **FAST)
        assert list(dls.vocab[1]) == ['neg','pos'] and 'film' in dls.vocab[0]
    dls = TransformerDataLoaders.from_df(df[[2,3]].set_axis([0,1], axis=1), text_col=0, label_col=1, **FAST)
    assert list(dls.vocab[1]) == ['neg','pos']


@pytest.mark.parametrize('valid', [False,True])
def test_infinite_target_of_fastais_loaders(valid):
    "It was a model that has diverged, or a loss without end"
    df = frame(stars=[1.5,2.5]*10)
    df.loc[4 if valid else 5, 'stars'] = np.inf
    dls = TextDataLoaders.from_df(df, label_col='stars', y_block=RegressionBlock(), valid_col='is_valid', **FAST)
    with pytest.raises(ValueError, match=f'label inf in 1 of .* {"validation" if valid else "training"} rows .* is no target'): check_dls(dls)


def test_label_in_validation_only():
    df = frame()
    df.loc[[4, 9], 'label'] = 'neutral'
    with pytest.raises(ValueError, match=r"'neutral' of column 'label' occurs in validation rows only: 2 of 20 rows \(index 4, 9\).*y_block .from_folder: a vocab. that holds it"): check(df)
    with pytest.raises(ValueError, match=r"index 4, 9\): move some to training or leave them out$"): check(df, block_ok=False)
    check(df, unseen_ok=True)
    df.loc[0, 'label'] = 'neutral'
    check(df)
    tags = frame(tags=['a;b']*19+['a;c'])
    with pytest.raises(ValueError, match="'c' of column 'tags'.*index 19"): check(tags, label='tags', label_delim=';')
    lists = frame(tags=[['a', 'b'], []]*9+[['a'], ['c']])
    with pytest.raises(ValueError, match="'c' of column 'tags'.*index 19"): check(lists, label='tags')


def test_bad_labels():
    with pytest.raises(ValueError, match="'stars' has an infinite target in 1 of 20 rows"): check(frame(stars=[1.]*19+[np.inf]), label='stars')
    with pytest.raises(ValueError, match=r"'stars' has 1e\+39, which is infinite in float32, in 1 of 20 rows"): check(frame(stars=[1.5]*19+[1e39]), label='stars')
    with pytest.raises(ValueError, match="'num' holds 3 .*label_delim=';' splits strings"): check(frame(num=3), label='num', label_delim=';')
    with pytest.raises(ValueError, match=r"label_col=\['num', 'label'\] must all hold 0/1"): check(frame(num=3), label=['num', 'label'])


def test_label_kinds():
    df = frame(stars=1.5, num=3, a=0, b=[0,1]*10, t=True, x='u', l=[['p'], []]*10)
    kinds = {'label':'category', 'num':'category', 'a':'category', 't':'category', 'stars':'regression', 'l':'multi'}
    assert {k: label_kind(df, k) for k in kinds} == kinds
    assert label_kind(df, ['a', 'b']) == label_kind(df, ['a', 't']) == 'encoded'
    assert label_kind(df, ['label', 'x']) == label_kind(df, 'label', ' ') == 'multi'
    assert label_kind(df.assign(more=2.), ['stars', 'more']) == 'regression'


def test_big_frames_are_quick():
    df = pd.concat([frame(1000)]*25, ignore_index=True)
    t = time.process_time()
    check(df)
    assert time.process_time()-t < 1


# ---------------------------------------------------------------- loaders

def test_signature_shows_the_options():
    names = signature(TransformerDataLoaders.from_df).parameters
    assert set(signature(TextDataLoaders.from_df).parameters) <= set(names)
    assert {'min_freq', 'max_vocab', 'n_workers', 'bs', 'val_bs'} <= set(names) and 'kwargs' not in names
    assert {'csv_fname', 'label_col', 'bs'} <= set(signature(TransformerDataLoaders.from_csv).parameters)


def test_same_loaders_as_fastai():
    "On a frame without faults the texts, ids and labels are fastai's own"
    kw = dict(label_col='label', valid_col='is_valid', bs=4, tok_tfm=BaseTokenizer())
    a,b = TransformerDataLoaders.from_df(frame(), n_workers=0, **kw),TextDataLoaders.from_df(frame(), **kw)
    assert a.vocab[0] == b.vocab[0] and list(a.vocab[1]) == list(b.vocab[1])
    for (x,y),(x2,y2) in zip(a.valid_ds, b.valid_ds): assert torch.equal(x, x2) and y == y2
    assert isinstance(a, TransformerDataLoaders) and isinstance(a.valid, SortedDL)


@pytest.mark.parametrize('tags,kw', [('pos;', dict(label_delim=';')), (';pos', dict(label_delim=';')), ('pos; ;neg', dict(label_delim=';')), (['pos',''], {})], ids=str)
def test_empty_label_among_others(tags, kw):
    "A delimiter at the end made a class without a name; the remedy in the message works"
    df = frame(tags=['pos;neg' if kw else ['pos','neg'] for _ in range(20)])
    df.at[7,'tags'] = tags
    with pytest.raises(ValueError, match="'tags' has an empty label.*1 of 20 rows .index 7.: leave it out") as e: TransformerDataLoaders.from_df(df, label_col='tags', valid_col='is_valid', **kw, **FAST)
    with pytest.raises(ValueError, match='an empty label.*index 7'): best_classifier(df, label_col='tags', minutes=0.02, verbose=False, **kw)
    exec(str(e.value).split('leave it out with ')[1])
    dls = TransformerDataLoaders.from_df(df, label_col='tags', valid_col='is_valid', **kw, **FAST)
    assert list(dls.vocab[1]) == ['neg','pos']
    check(df.assign(tags=''  if kw else [[] for _ in range(20)]), label='tags', valid=None, **kw)


def test_empty_label_among_others_of_a_block():
    "`MultiCategoryBlock` makes a class of it, too"
    df = frame(tags=['pos;neg;','pos']*10)
    with pytest.raises(ValueError, match="'tags' has an empty label among others, as in 'pos;neg;', in 10 of 20"):
        TransformerDataLoaders.from_df(df, label_col='tags', label_delim=';', y_block=MultiCategoryBlock, valid_col='is_valid', **FAST)


def test_empty_label_in_one_of_several_columns():
    "It was a class without a name; the remedy in the message works"
    df = frame(a=['x','y']*10, b=['','  ','z','z']*5)
    with pytest.raises(ValueError, match="'b' has an empty label.*10 of 20 rows.*leave it out") as e: check(df, label=['a','b'])
    check(df, label=['a','b'], unseen_ok=True)
    assign,label_col = str(e.value).split('leave it out with ')[1].split(" and label_col=")
    exec(assign)
    dls = TransformerDataLoaders.from_df(df, label_col=eval(label_col), valid_col='is_valid', **FAST)
    assert list(dls.vocab[1]) == ['x','y','z']


@pytest.mark.parametrize('kw', [dict(label_col=['fun', 'long']), dict(label_col='tags', label_delim=';'), dict(label_col='lists'),
                                dict(label_col=['flag', 'long'])])
def test_many_labels(kw):
    fun,long = [i%2 for i in range(20)],[int(i%3==0) for i in range(20)]
    tags = [['fun']*f+['long']*l for f,l in zip(fun, long)]
    df = frame(fun=fun, long=long, flag=[bool(o) for o in fun], lists=tags, tags=[';'.join(o) for o in tags])
    dls = TransformerDataLoaders.from_df(df, valid_col='is_valid', **kw, **FAST)
    assert all(isinstance(y, TensorMultiCategory) for _,y in dls.train_ds)
    train = df[~df.is_valid]
    assert [y.tolist() for _,y in dls.train_ds] == train[['fun', 'long']].astype(float).to_numpy().tolist()
    assert isinstance(dls.loss_func, BCEWithLogitsLossFlat) and dls.c == 2
    one_step(dls, 2)


def test_two_string_columns_are_many_labels():
    dls = TransformerDataLoaders.from_df(frame(kind=['short', 'long', 'short']*6+['long']*2), label_col=['label', 'kind'], valid_col='is_valid', **FAST)
    assert list(dls.vocab[1]) == ['long', 'neg', 'pos', 'short'] and dls.train_ds[0][1].sum() == 2


@pytest.mark.parametrize('col,n', [('stars', 1), (['stars', 'more'], 2)])
def test_regression(col, n):
    df = frame(stars=np.linspace(0, 1, 20), more=0.5)
    dls = TransformerDataLoaders.from_df(df, label_col=col, valid_col='is_valid', **FAST)
    y = torch.stack([y for _,y in dls.train_ds]).reshape(16, n)
    assert np.allclose(y, df[~df.is_valid][L(col)].to_numpy()) and isinstance(dls.loss_func, MSELossFlat().__class__)
    assert dls.c == n
    one_step(dls, n)


def test_one_label_trains_and_given_block_wins():
    assert one_step(TransformerDataLoaders.from_df(frame(), label_col='label', valid_col='is_valid', **FAST), 2).dls.c == 2
    df = frame(stars=[float(i%3) for i in range(20)])
    dls = TransformerDataLoaders.from_df(df, label_col='stars', y_block=CategoryBlock, valid_col='is_valid', **FAST)
    assert dls.c == 3 and isinstance(dls.train_ds[0][1], TensorCategory)
    df.loc[4, 'label'] = 'neutral'
    dls = TransformerDataLoaders.from_df(df, label_col='label', y_block=CategoryBlock(vocab=['neg', 'neutral', 'pos']), valid_col='is_valid', **FAST)
    assert dls.valid_ds[0][1] == 1
    with pytest.raises(ValueError, match="'neutral' in 1 of 4 validation rows.*not in the vocabulary"):
        TransformerDataLoaders.from_df(df, label_col='label', y_block=CategoryBlock, valid_col='is_valid', **FAST)


def test_random_split_is_fastais_and_checked():
    df = frame()
    dls = TransformerDataLoaders.from_df(df, label_col='label', valid_pct=0.3, seed=7, **FAST)
    assert sorted(dls.valid_ds.items.index) == sorted(RandomSplitter(0.3, seed=7)(df)[1])
    rare = int(dls.valid_ds.items.index[0])
    df.loc[rare, 'label'] = 'rare'
    with pytest.raises(ValueError, match=f"'rare'.*index {rare}"): TransformerDataLoaders.from_df(df, label_col='label', valid_pct=0.3, seed=7, **FAST)
    assert len(TransformerDataLoaders.from_df(df, label_col='label', valid_pct=0, **FAST).valid_ds) == 0


def test_positions_odd_names_and_several_texts():
    df = frame().rename(columns=dict(label='count', text='size')) # names of methods and attributes
    dls = TransformerDataLoaders.from_df(df, label_col='count', text_col='size', valid_col='is_valid', **FAST)
    assert list(dls.vocab[1]) == ['neg', 'pos']
    swapped = frame()[['label', 'is_valid', 'text']].set_axis([2, 0, 1], axis=1)
    with pytest.raises(ValueError, match='is the name of one column and the position of another'): TransformerDataLoaders.from_df(swapped, text_col=2, label_col=0, valid_col=1, **FAST)
    assert list(TransformerDataLoaders.from_df(swapped, text_col='1', label_col='2', valid_col='0', **FAST).vocab[1]) == ['neg', 'pos']
    two = TransformerDataLoaders.from_df(frame(title='the title'), text_col=['title', 'text'], label_col='label', valid_col='is_valid', **FAST)
    assert 'xxfld' in [two.vocab[0][i] for i in two.train_ds[0][0]]
    other = TransformerDataLoaders.from_df(frame(), label_col='label', valid_col='is_valid', tok_text_col='tokens', **FAST)
    assert torch.equal(other.train_ds[0][0], dls.train_ds[0][0])


@pytest.mark.parametrize('several', [list, tuple, pd.Index, np.array, pd.Series, lambda o: pd.Series(o, dtype=object)])
def test_columns_in_a_list_or_an_array(several):
    "Names and positions of columns come in a list, an array, an index or a series; one may be a number of numpy's"
    df = frame()
    df = df.assign(a=df.label.eq('pos').astype(int), b=df.label.eq('neg').astype(int), title='a title')
    at = [df.columns.get_loc(c) for c in 'ab']
    for cols in (['a','b'], at):
        assert label_kind(df, several(cols)) == 'encoded'
        dls = TransformerDataLoaders.from_df(df, text_col=several(['title','text']), label_col=several(cols), valid_col='is_valid', **FAST)
        assert list(dls.vocab[1]) == ['a','b'] and 'xxfld' in [dls.vocab[0][i] for i in dls.train_ds[0][0]]
    place = {c:np.int64(df.columns.get_loc(c)) for c in ('text','label','is_valid')}
    dls = TransformerDataLoaders.from_df(df, text_col=place['text'], label_col=several([place['label']]), valid_col=place['is_valid'], **FAST)
    assert list(dls.vocab[1]) == ['neg','pos']

@pytest.mark.parametrize('col', ['text', 'text_length'])
def test_label_column_with_the_name_of_a_token_column(col):
    "Tokens would be written over the labels to test on; under another name they are not"
    df = frame().assign(review=lambda o: o.text, **{col:[1.5, 2.]*10})
    kw = dict(text_col='review', label_col=col, valid_col='is_valid', **FAST)
    with pytest.raises(ValueError, match=f"label column '{col}'.*'text' and 'text_length'.*rename it, or pass another tok_text_col"): TransformerDataLoaders.from_df(df, **kw)
    dls = TransformerDataLoaders.from_df(df, tok_text_col='tokens', **kw)
    assert [y.item() for _,y in dls.test_dl(df[:4], with_labels=True).dataset] == [1.5, 2., 1.5, 2.]
    assert [y.item() for _,y in dls.train_ds] == df[col][~df.is_valid].tolist()


@pytest.mark.parametrize('make', [TransformerDataLoaders.from_df, LMDataLoaders.from_df, Seq2SeqDataLoaders.from_df, self_pretrain])
def test_no_frame(make):
    with pytest.raises(TypeError, match=r'list is no data frame: pass one, such as pd.read_csv\(file\)'): make(['a text'])


def from_folder(path, **kw): return TransformerDataLoaders.from_folder(text_folder(path/'texts'), **{'bs':2, **kw})


MAKERS = [lambda path, **kw: TransformerDataLoaders.from_df(frame(), **{**FAST, **kw}), lambda path, **kw: LMDataLoaders.from_df(frame(), tok_tfm=CharTokenizer(), **{'bs':2, **kw}),
          lambda path, **kw: Seq2SeqDataLoaders.from_df(frame(), **{'bs':2, **kw}), lambda path, **kw: self_pretrain(frame(), minutes=1e-3, **kw),
          from_folder, partial(from_folder, tok_tfm=CharTokenizer())]
each_maker = pytest.mark.parametrize('make', MAKERS, ids=['frame', 'lm', 'pairs', 'self', 'folder', 'folder and tokenizer'])


@each_maker
@pytest.mark.parametrize('pct', [-.1, 1, 1.5, '0.2', np.nan, None, [0.2]])
def test_bad_valid_pct(tmp_path, make, pct):
    if pct is None and make in MAKERS[4:]: return # the folders tell
    with pytest.raises(ValueError, match=re.escape(f'valid_pct={pct!r}: give the share of the rows for validation, 0 <= valid_pct < 1')): make(tmp_path, valid_pct=pct)


@each_maker
@pytest.mark.parametrize('bs,error', [(0, ValueError), (-1, ValueError), (None, TypeError), (2.5, TypeError), ('8', TypeError), (True, TypeError)])
def test_bad_batch_size(tmp_path, make, bs, error):
    with pytest.raises(error, match=re.escape(f'bs={bs!r}: at least 1 text in a batch, a whole number')): make(tmp_path, bs=bs)


@each_maker
def test_bad_batch_size_for_validation(tmp_path, make):
    "None is that of training"
    if make is MAKERS[3]: return # chooses it itself
    with pytest.raises(ValueError, match='val_bs=0: at least 1 text'): make(tmp_path, val_bs=0)
    assert make(tmp_path, val_bs=None).valid.bs in (2, 4)


@pytest.mark.parametrize('col', ['text','label'])
def test_half_signs(col):
    "A lone surrogate is found before any work is done; the remedy mends it"
    df = texts_df(20)
    df[col] = df[col].where(df.index != 3, df[col]+' \ud83d')
    kw = dict(text_col='text', valid_col='is_valid', tok_tfm=BaseTokenizer())
    with pytest.raises(ValueError, match=rf"column '{col}' holds half of a sign.*1 of 20 rows \(index 3\).*str.encode"):
        TransformerDataLoaders.from_df(df, label_col='label', **kw)
    if col == 'label': return
    for make in (LMDataLoaders.from_df, partial(Seq2SeqDataLoaders.from_df, src_col='text', tgt_col='label')):
        with pytest.raises(ValueError, match='half of a sign.*index 3'): make(df, **{k:v for k,v in kw.items() if k != 'text_col' or make == LMDataLoaders.from_df})
    df[col] = df[col].str.encode('utf-8', 'replace').str.decode('utf-8')
    check_df(df, 'text', 'label')

def test_labels_of_two_types():
    mixed = frame(label=[1 if i%2 else 'neg' for i in range(20)])
    with pytest.raises(ValueError, match=r"'label' mixes labels of different types \(int, str\): convert it with df\['label'\].astype\(str\)$"): check(mixed)

def test_a_word_among_numbers():
    "What may be meant as numbers is told how it becomes numbers, too"
    prices = frame(label=[i+0.5 if i else 'n/a' for i in range(20)])
    with pytest.raises(ValueError, match=r"types \(float, str\).*or for numbers with pd.to_numeric") as e: check(prices)
    remedy = str(e.value).split('for numbers with ')[1].split(', and drop')[0]
    assert eval(remedy, dict(pd=pd, df=prices)).dropna().tolist() == [i+0.5 for i in range(1, 20)]


@pytest.mark.parametrize('label', ['',' '])
def test_empty_label(label):
    "A label that is missing, but read as an empty string, is no class; of many labels it says that there is none"
    df = texts_df(40)
    df.loc[[3,17], 'label'] = label
    options = dict(text_col='text', label_col='label', valid_col='is_valid', bs=8)
    with pytest.raises(ValueError, match=r"column 'label' has an empty label in 2 of 40 rows \(index 3, 17\).*replace"): TransformerDataLoaders.from_df(df, **options)
    dls = TransformerDataLoaders.from_df(df.assign(label=df.label.str.strip()), label_delim=';', **options)
    assert '' not in dls.vocab[1]

@pytest.mark.parametrize('kw', [dict(min_freq='2'), dict(max_vocab='100'), dict(n_workers='2'), dict(seq_len='64'), dict(seq_len=2.5)])
def test_numbers_as_strings(kw, monkeypatch):
    "They are named before a text is cut"
    monkeypatch.setattr(BaseTokenizer, '__call__', lambda *args: pytest.fail('a text has been cut'))
    [k] = kw
    df = texts_df(40)
    make = [lambda: TransformerDataLoaders.from_df(df, text_col='text', label_col='label', tok_tfm=BaseTokenizer(), **kw),
            lambda: LMDataLoaders.from_df(df, text_col='text', tok_tfm=BaseTokenizer(), **kw),
            lambda: Seq2SeqDataLoaders.from_df(df, src_col='text', tgt_col='label', tok_tfm=BaseTokenizer(), **kw)]
    for f in make[:2 if k == 'seq_len' else 3]:
        with pytest.raises(ValueError, match=f'{k}={kw[k]!r} is out of range'): f()

@pytest.mark.parametrize('kw,error,why', [
    (dict(seqlen=64), TypeError, "'seqlen': did you mean 'seq_len'"), (dict(windows='rand'), ValueError, "windows='rand'"),
    (dict(bs='16'), TypeError, "bs='16'"), (dict(epoch_len=-1, windows='random'), ValueError, 'epoch_len=-1'), (dict(val_bs=0), ValueError, 'val_bs=0')])
def test_options_of_a_stream(kw, error, why):
    "They are looked at before a text is read"
    def texts():
        pytest.fail('a text has been read')
        yield ''
    with pytest.raises(error, match=why): LMDataLoaders.from_texts(texts(), tok_tfm=CharTokenizer(), **kw)

def test_misspelt_option():
    with pytest.raises(TypeError, match="no option 'bacth_size'.*batch_size"): TransformerDataLoaders.from_df(frame(), bacth_size=3)
    with pytest.raises(TypeError, match="no option 'valid_pc'"): TransformerDataLoaders.from_folder('.', valid_pc=3)
    dls = TransformerDataLoaders.from_df(frame(), valid_col='is_valid', num_workers=0, drop_last=True, **FAST)
    assert dls.train.fake_l.num_workers == 0


def test_lm_route():
    dls = TransformerDataLoaders.from_df(frame(60)[['text', 'is_valid']], is_lm=True, valid_col='is_valid', seq_len=5, **FAST)
    x,y = dls.one_batch()
    assert x.shape == (4, 5) and torch.equal(x[:,1:], y[:,:-1]) and not isinstance(dls.vocab, L)
    with pytest.raises(ValueError, match=r"validation set has \d+ tokens, fewer than 301, .*bs=300 \(seq_len=5\): pass a smaller val_bs"):
        TransformerDataLoaders.from_df(frame(60), is_lm=True, valid_col='is_valid', seq_len=5, val_bs=300, **FAST)
    with pytest.raises(ValueError, match='training set has fewer than 1001 tokens.*pass a smaller bs'):
        TransformerDataLoaders.from_df(frame(6), is_lm=True, valid_col='is_valid', **{**FAST, 'bs':1000})


def test_too_few_texts_for_a_batch():
    with pytest.raises(ValueError, match='training set has 16 texts, fewer than 64.*pass a smaller bs'):
        TransformerDataLoaders.from_df(frame(), label_col='label', valid_col='is_valid', **{**FAST, 'bs':64})


def test_vocab_with_padding_elsewhere():
    vocab = [UNK, 'a', 'good', 'bad', 'film', BOS, PAD]
    kw = dict(label_col='label', valid_col='is_valid', text_vocab=vocab)
    dls = TransformerDataLoaders.from_df(frame(text=['a', 'a good film']*10), **kw, **{**FAST, 'bs':16})
    x,_ = dls.one_batch()
    assert pad_index(dls) == 6 and (x == 6).any() and not x[:,:2].eq(6).any()
    assert torch.equal((x == 6).sum(1), 4 - torch.where(x[:,2] == 2, 4, 2))
    with pytest.raises(ValueError, match="padded with 'a' .pad_idx=1.*'xxpad' is at 6"): check_dls(TextDataLoaders.from_df(frame(), bs=4, tok_tfm=BaseTokenizer(), **kw))
    with pytest.raises(ValueError, match="'xxpad' is not among the 2 tokens"): TransformerDataLoaders.from_df(frame(), **{**kw, 'text_vocab':[UNK, 'a']}, **FAST)


def test_vocab_in_any_sequence():
    "A series with numbers of its own is read in its order; a dictionary is refused by its name"
    def loaders(vocab): return TransformerDataLoaders.from_df(frame(), label_col='label', valid_col='is_valid', text_vocab=vocab, **FAST)
    vocab = [UNK, PAD, 'a', 'good']
    assert text_vocab(loaders(pd.Series(vocab, index=range(1, 5)))) == vocab
    with pytest.raises(ValueError, match='(?s)text_vocab=.* is out of range: a list of tokens'): loaders({t:i for i,t in enumerate(vocab)})


@pytest.mark.parametrize('lists,ok', [
    ([[.1,.5],[.2,.3]], False), ([[.5],[.1]], False), ([[1,.5],[2,3]], False), ([[1,0,0],[0,1,0]], False), ([(True,False),(False,False)], False),
    ([np.array([1,0]),np.array([0,1])], False), ([np.array([.1],dtype=np.float32)]*2, False),
    ([[1,0],[1]], True), ([[0],[1]], True), ([[3,7],[7,3]], True), ([['0','1'],['1','0']], True), ([[1,2,3],[1]], True)], ids=str)
def test_lists_of_numbers_are_no_tags(lists, ok):
    "Nor are those with a 0 or 1 for each label; numbers of tags are"
    df = pd.DataFrame(dict(text=['a film','a book']*2, label=lists*2))
    if ok: return check_df(df, 'text', 'label')
    with pytest.raises(ValueError, match=r"lists of numbers .*label_col=\[…\]"): check_df(df, 'text', 'label')
    check_df(df, 'text', 'label', unseen_ok=True)                       # a y_block may read them

@pytest.mark.parametrize('yes,no', [('yes','no'), ('1','0'), ('True','False'), ('Y','n'), (' Yes','No')])
def test_answers_are_no_tags(yes, no):
    "Several columns of yes and no are refused, with what makes them 0/1; other strings are tags, and one column has two classes"
    df = frame(good=[yes,no]*10, long=[no]*10+[yes]*10)
    with pytest.raises(ValueError, match='where each column is a label') as e: TransformerDataLoaders.from_df(df, label_col=['good','long'], **FAST)
    exec(re.search(r'df\[.*\.astype\(int\)', str(e.value))[0])
    dls = TransformerDataLoaders.from_df(df, label_col=['good','long'], valid_col='is_valid', **FAST)
    assert list(dls.vocab[1]) == ['good','long'] and dls.train_ds[0][1].tolist() == [1,0]
    check(frame(good=[yes,no]*10), label='good')
    check(frame(a=[yes,no]*10, b=['perhaps',no]*10), label=['a','b'])

@pytest.mark.parametrize('loaders', [TransformerDataLoaders, TextDataLoaders])
def test_lists_from_a_csv_file(loaders):
    "They are strings, whose parts are no tags: the remedy makes lists of them; fastai's loaders are refused by `check_dls`"
    df = frame(tags=[str(o) for o in [['a','x'],['x'],[],['a']]*5])
    def make(df, **kw): return check_dls(dls := loaders.from_df(df, text_col='text', label_col='tags', valid_col='is_valid', y_block=MultiCategoryBlock, **kw, tok_tfm=BaseTokenizer(), bs=4)) or dls
    for kw in ({}, dict(label_delim=',')):
        with pytest.raises(ValueError, match='lists as strings .*leave label_delim out') as e: make(df, **kw)
    exec(re.search(r'import ast; .*literal_eval\)', str(e.value))[0])
    assert list(make(df).vocab[1]) == ['a','x']
    check(frame(label=['[a]','[b]']*10)); check(frame(label=['[1]','none']*10))

@pytest.mark.parametrize('loaders', [TransformerDataLoaders, TextDataLoaders])
@pytest.mark.parametrize('cls', [int, bool, float])
def test_one_hot_columns_are_no_tags(loaders, cls):
    "With a block that takes 0 and 1 for the labels; what the error names works"
    df = frame(good=np.array([1,0]*10, dtype=cls), long=np.array([0,1,1,0]*5, dtype=cls))
    kw = dict(text_col='text', label_col=['good','long'], valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=4)
    def make(**block): return check_dls(dls := loaders.from_df(df, **kw, **block)) or dls
    for block in (MultiCategoryBlock, MultiCategoryBlock()):
        with pytest.raises(ValueError, match=r'0 and 1 would be two labels: .*encoded=True, vocab=.*leave y_block out'): make(y_block=block)
    assert make(y_block=MultiCategoryBlock(encoded=True, vocab=['good','long'])).vocab[1] == ['good','long']
    assert list(TransformerDataLoaders.from_df(df, **kw).vocab[1]) == ['good','long']

@pytest.mark.parametrize('block,why', [
    (MultiCategoryBlock(encoded=True, vocab=['long','good']), r"vocab=.'long', 'good'., .*in their order, vocab=.'good', 'long'."),
    (MultiCategoryBlock(encoded=True, vocab=['good']), "vocab=.'good'., and the label columns are"),
    (MultiCategoryBlock(encoded=True, vocab=['good','new','long']), 'the label columns are'),
    (CategoryBlock, 'one label column, not for .*: leave y_block out'), (CategoryBlock(), 'name one column')])
def test_block_fits_the_columns(block, why):
    "Names of labels in another order than their columns, or of another number, and one label of several columns; other names are free"
    df = frame(good=[1,0]*10, long=[0,1,1,0]*5)
    def make(y_block): return TransformerDataLoaders.from_df(df, label_col=['good','long'], valid_col='is_valid', y_block=y_block, **FAST)
    with pytest.raises(ValueError, match=why): make(block)
    assert make(MultiCategoryBlock(encoded=True, vocab=['Good','Long'])).vocab[1] == ['Good','Long']

@pytest.mark.parametrize('make', [partial(TransformerDataLoaders.from_df, label_col='label', **FAST), partial(LMDataLoaders.from_df, tok_tfm=CharTokenizer(), bs=2, seq_len=4),
    partial(Seq2SeqDataLoaders.from_df, tgt_col='label', tok_tfm=CharTokenizer(), bs=4)])
def test_index_that_names_rows_twice(make):
    "With copies across the split, too"
    df = frame(); twice = pd.concat([df, df])
    with pytest.warns(UserWarning, match='validation texts are in the training set'): dls = make(twice, valid_col='is_valid')
    with pytest.warns(UserWarning, match='validation texts are in the training set'): want = make(twice.reset_index(drop=True), valid_col='is_valid')
    assert len(dls.valid_ds) == len(want.valid_ds) == 8 and all(torch.equal(a[0], b[0]) for a,b in zip(dls.valid_ds, want.valid_ds))

@pytest.mark.parametrize('make', [partial(TransformerDataLoaders.from_df, label_col='label'), partial(self_pretrain, label_col='label'), LMDataLoaders.from_df])
def test_no_column_of_texts(make):
    for col in (None, []):
        with pytest.raises(ValueError, match='text_col=.* names no column: name the one with the texts'): make(frame(), text_col=col)

def test_no_column_of_labels():
    "Without labels there is a language model to train"
    with pytest.raises(ValueError, match='label_col=None names no column: .* is_lm=True'): TransformerDataLoaders.from_df(frame(), text_col='text', label_col=None, **FAST)
    TransformerDataLoaders.from_df(frame(), text_col='text', label_col=None, is_lm=True, seq_len=8, **FAST)

def test_csv(tmp_path):
    frame().to_csv(tmp_path/'labels.csv', index=False)
    dls = TransformerDataLoaders.from_csv(tmp_path, label_col='label', valid_col='is_valid', **FAST)
    assert isinstance(dls, TransformerDataLoaders) and dls.path == tmp_path and len(dls.valid_ds) == 4
    frame(text='a; b; c; d').to_csv(tmp_path/'semi.csv', index=False) # pandas would guess ';'
    dls = TransformerDataLoaders.from_csv(tmp_path, 'semi.csv', label_col='label', valid_col='is_valid', **FAST)
    assert 'd' in dls.vocab[0]
    frame(text=['']+['a']*19).to_csv(tmp_path/'labels.csv', index=False)
    with pytest.raises(ValueError, match=r"fillna\(''\)"): TransformerDataLoaders.from_csv(tmp_path, label_col='label', **FAST)

@pytest.mark.parametrize('cls', [TransformerDataLoaders, LMDataLoaders, Seq2SeqDataLoaders])
def test_csv_given_as_one_path(tmp_path, cls):
    "It is named, with the call that works"
    file = tmp_path/'some.csv'
    frame().to_csv(file, index=False)
    with pytest.raises(NotADirectoryError, match=r"some.csv' is a file: give its folder and its name, from_csv\('.*', 'some.csv'\)"): cls.from_csv(file)

def test_csv_of_pairs_in_another_encoding(tmp_path):
    "As of other loaders"
    df = pd.DataFrame(dict(src=['ja','nein']*10, tgt=['h\u00e9','\u00e9h']*10))
    df.to_csv(tmp_path/'pairs.csv', index=False, encoding='latin-1')
    with pytest.raises(UnicodeDecodeError, match="pairs.csv is no text in utf8: give its encoding, such as encoding='latin1'"): Seq2SeqDataLoaders.from_csv(tmp_path, tok_tfm=CharTokenizer(), bs=4)
    dls = Seq2SeqDataLoaders.from_csv(tmp_path, tok_tfm=CharTokenizer(), bs=4, encoding='latin-1')
    assert '\u00e9' in dls.vocab[1]

def test_csv_keeps_zeros(tmp_path):
    "Labels that look like numbers stay as they are written where `dtype` says so"
    frame(label=['007','070']*10).to_csv(tmp_path/'labels.csv', index=False)
    dls = TransformerDataLoaders.from_csv(tmp_path, label_col='label', valid_col='is_valid', dtype=dict(label=str), **FAST)
    assert list(dls.vocab[1]) == ['007','070']

def test_csv_of_namibia(tmp_path):
    "A label that pandas takes for a missing one, a file in another encoding, and options that are misspelt"
    frame(label=['NA','Südafrika']*10).to_csv(tmp_path/'labels.csv', index=False, encoding='latin-1')
    def make(**kw): return TransformerDataLoaders.from_csv(tmp_path, label_col='label', valid_col='is_valid', **kw, **FAST)
    assert list(make(encoding='latin-1', keep_default_na=False).vocab[1]) == ['NA','Südafrika']
    with pytest.raises(ValueError, match="no label.*says NA and means it, read it with keep_default_na=False"): make(encoding='latin-1')
    with pytest.raises(TypeError, match="'keep_default'.*keep_default_na"): make(keep_default=False)      # before the file is read
    for f in (make, lambda: LMDataLoaders.from_csv(tmp_path)):
        with pytest.raises(UnicodeDecodeError, match="labels.csv is no text in utf8: give its encoding, such as encoding='latin1'"): f()

def test_prices_as_labels():
    "Numbers with many values, which validation rows alone have, are hardly classes"
    df = frame(label=[*range(20)]).loc[[*range(20)]*2].reset_index(drop=True)
    df = df.assign(text=[f'text {i}' for i in df.index], label=df.index*1000)
    with pytest.raises(ValueError, match=r'or pass a y_block.*for numbers, y_block=RegressionBlock\(\)'): TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', **FAST)
    with pytest.raises(ValueError, match='occurs in validation rows only(?!.*Regression)'): check_df(df, 'text', 'label', 'is_valid', block_ok=False)
    with pytest.raises(ValueError, match='occurs in validation rows only(?!.*Regression)'): check(df.assign(label=[0,1,2,3,4]*8).assign(is_valid=[i%5==4 for i in df.index]))

def test_labels_that_were_taken_apart():
    "By fastai's block for several labels, which gets strings"
    df = frame(label=['a;x','x']*10)
    with pytest.raises(ValueError, match="'a;x' in .* rows .*letter by letter: give label_delim"): TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', y_block=MultiCategoryBlock, **FAST)
    dls = TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', label_delim=';', y_block=MultiCategoryBlock, **FAST)
    assert list(dls.vocab[1]) == ['a','x']

@pytest.mark.parametrize('labels', [['cat',['cat','dog']], [3,['cat','dog']], ['dog',['cat',1]], [['cat'],('cat','dog'),'dog',np.array(['dog'])]], ids=str)
def test_a_label_alone_among_lists(labels):
    "Its letters were labels in silence, and a number was an error of pandas; the remedies work, one after the other"
    df = frame(label=labels*(20//len(labels)))
    kw = dict(label_col='label', valid_col='is_valid', **FAST)
    with pytest.raises(ValueError, match=r"'label' holds .* where a list of labels is needed, in \d+ of 20 rows .*make it one") as e: TransformerDataLoaders.from_df(df, **kw)
    exec(str(e.value).split('make it one, ')[1])
    if 1 in labels[1]:
        with pytest.raises(ValueError, match='mixes labels') as e: TransformerDataLoaders.from_df(df, **kw)
        df['label'] = eval(str(e.value).split('convert it with ')[1])
    dls = TransformerDataLoaders.from_df(df.assign(label=lambda o: o.label.map(lambda os: [*map(str, os)])), **kw)
    assert {*dls.vocab[1]} == {str(o) for l in labels for o in (l if isinstance(l, (list,tuple,np.ndarray)) else [l])}

def test_letters_of_labels_in_any_loaders():
    "fastai's loaders are refused by `check_dls`, a frame with labels by `test_dl`; one letter is itself"
    kw = dict(text_col='text', label_col='label', valid_col='is_valid', y_block=MultiCategoryBlock, tok_tfm=BaseTokenizer(), bs=4)
    for labels in (['cat',['cat','dog']], ['ab',['a','b']]):
        dls = TextDataLoaders.from_df(frame(label=labels*10), **kw)
        with pytest.raises(ValueError, match=rf"label '{labels[0]}' in 8 of 16 training rows .numbers .0, 2.*letter by letter: give label_delim"): check_dls(dls)
    check_dls(TextDataLoaders.from_df(frame(label=['a',['a','b']]*10), **kw))
    dls = TransformerDataLoaders.from_df(frame(label=[['cat'],['cat','dog']]*10), label_col='label', valid_col='is_valid', **FAST)
    for label in ('cat', 3, "['cat']"):
        with pytest.raises(ValueError, match="'label' h.*(a list of labels is needed, in 20 of 20 rows|lists as strings)"): dls.test_dl(frame(label=label), with_labels=True)
    assert dls.test_dl(frame(label=[['cat']]*20), with_labels=True).one_batch()[1].tolist() == [[1,0]]*4
    letters = TransformerDataLoaders.from_df(frame(label=['a','b']*10), label_col='label', valid_col='is_valid', y_block=MultiCategoryBlock, **FAST)
    assert len(letters.test_dl(frame(label='a'), with_labels=True).one_batch()) == 2


def text_folder(path):
    "Folders as fastai wants them, two short texts in each"
    for s in ('train', 'valid'):
        for l in ('neg', 'pos'):
            for i in range(2): (path/s/l/f'{i}.txt').mk_write(f'{l} text {i}')
    return path


def test_folder_with_a_new_or_changed_file(tmp_path):
    path = text_folder(tmp_path/'texts')
    make = lambda: TransformerDataLoaders.from_folder(path, bs=2)
    dls = make()
    assert isinstance(dls, TransformerDataLoaders) and len(dls.train_ds) == 4
    (path/'train'/'pos'/'new.txt').write_text('pos newcomer')
    assert len(make().train_ds) == 5
    f = path/'train'/'neg'/'0.txt'
    f.write_text('changed '*9)
    assert max(len(x) for x,_ in make().train_ds) >= 4
    (path/'valid'/'other'/'0.txt').mk_write('an unknown label')
    with pytest.raises(ValueError, match="'other' in 1 of 5 validation rows"): make()
    got = dls.test_dl([f]).one_batch()[0]
    assert got.shape[0] == 1


def test_refresh_tokens(tmp_path):
    "fastai's own cache is made again for a new file, and for one whose date is ahead"
    path = text_folder(tmp_path/'texts')
    assert refresh_tokens(path) == 0
    make = lambda: Tokenizer.from_folder(path, tok=BaseTokenizer(), n_workers=0)
    make()
    assert refresh_tokens(path) == 0
    (path/'train'/'pos'/'new.txt').write_text('pos newcomer')
    os.utime(path/'train'/'neg'/'0.txt', (time.time()+999,)*2)
    assert refresh_tokens(path) == 2 and refresh_tokens(path) == 0
    assert 'newcomer' in make()(path/'train'/'pos'/'new.txt')


def test_folder_is_fastais(tmp_path):
    "The same ids and labels as fastai's `from_folder`, and of a language model the same vocabulary; the second time without cutting"
    path = text_folder(tmp_path/'texts')
    for f in get_text_files(path): f.write_text(f.read_text()*3 + ' A "Film" & more\n\n  x')
    kws = dict(), dict(valid_pct=0.5, seed=1), dict(is_lm=True, seq_len=4), dict(vocab=['pos','neg'], backwards=True)
    for kw in kws*2:
        fastais = TextDataLoaders.from_folder(path, bs=2, **kw)
        same = {} if 'is_lm' in kw else dict(text_vocab=[*fastais.vocab[0]])  # labelled, ours keeps rare words
        ours = TransformerDataLoaders.from_folder(path, bs=2, **kw, **same)
        for a,b in zip((ours.train_ds, ours.valid_ds), (fastais.train_ds, fastais.valid_ds)):
            assert list(a.items) == list(b.items)
            assert [o.tolist() for o in a.tls[0]] == [o.tolist() for o in b.tls[0]]
            if 'is_lm' not in kw: assert list(a.tls[1]) == list(b.tls[1])
        assert {*ours.vocab[0]} == {*fastais.vocab[0]}
        assert text_tokenizer(ours).get_lengths(ours.train_ds.items) == text_tokenizer(fastais).get_lengths(ours.train_ds.items)


def test_kept_tokens_are_used(tmp_path, monkeypatch):
    "Only new and changed files are cut, or all if the rules are others"
    path,cut = text_folder(tmp_path/'texts'), []
    real = folders.token_lists
    def counted(texts, *args): cut.append(len(texts)); return real(texts, *args)
    monkeypatch.setattr(folders, 'token_lists', counted)
    make = lambda rules=None: folders.FolderTokenizer(path, BaseTokenizer, rules)
    first = make()
    again = make()
    assert first.kept == again.kept and first.lengths == again.lengths and first.counter == again.counter
    (path/'train'/'pos'/'new.txt').write_text('pos newcomer')
    (path/'train'/'neg'/'0.txt').unlink()
    assert len(make().kept) == 8
    make([])
    assert cut == [8,0,1,8]


def test_byte_order_mark(tmp_path):
    "Files that begin with one have the tokens of files that do not, from a folder, from files and in test_dl"
    plain,marked = [text_folder(tmp_path/o) for o in ('plain','marked')]
    for f in get_text_files(marked): f.write_text(f.read_text(), encoding='utf-8-sig')
    def both(make): return [make(o) for o in (plain,marked)]
    a,b = both(lambda o: TransformerDataLoaders.from_folder(o, bs=2))
    assert a.vocab[0] == b.vocab[0] and [o.tolist() for o in a.train_ds.tls[0]] == [o.tolist() for o in b.train_ds.tls[0]]
    def stream(o, **kw): return LMDataLoaders.from_files(get_text_files(o), tok_tfm=CharTokenizer(), bs=2, seq_len=4, **kw)
    (a,b),c = both(stream), stream(marked, encoding='UTF-8')
    assert a.vocab == b.vocab == c.vocab and a.train_ds.flat.ids.tolist() == b.train_ds.flat.ids.tolist()
    for dls in (TransformerDataLoaders.from_folder(plain, bs=2), stream(plain)):
        a,b = both(lambda o: dls.test_dl([o/'valid'/'neg'/'0.txt']).one_batch()[0])
        assert a.equal(b)


@pytest.mark.parametrize('change', [lambda m: m.setattr(defaults, 'text_spec_tok', [*defaults.text_spec_tok,'[sep]']),
    lambda m: m.setattr(defaults, 'text_postproc_rules', defaults.text_postproc_rules[:0]), lambda m: m.setattr(folders, 'version', lambda name: '0')], ids=['special','rules','spacy'])
def test_kept_tokens_are_cut_anew(tmp_path, monkeypatch, change):
    "Where fastai's special tokens, its rules for tokens or spaCy are others, the kept ones are not those of `test_dl`"
    path,cut = text_folder(tmp_path/'texts'), []
    f = path/'train'/'neg'/'0.txt'
    f.write_text('a film [sep] Good')
    real = folders.token_lists
    def counted(texts, *args): cut.append(len(texts)); return real(texts, *args)
    monkeypatch.setattr(folders, 'token_lists', counted)
    def make(): return TransformerDataLoaders.from_folder(path, bs=2)
    make()
    change(monkeypatch)
    dls = make()
    make()
    assert cut == [8,8,0] and list(text_tokenizer(dls)(f)) == tokenize_like(dls, [f])[0]

def test_kept_tokens_with_a_byte_order_mark(tmp_path, monkeypatch):
    "What was kept before such marks were left out is made anew"
    path = text_folder(tmp_path/'texts')
    want = folders.FolderTokenizer(path, BaseTokenizer).kept
    for f in get_text_files(path): f.write_text(f.read_text(), encoding='utf-8-sig')
    with monkeypatch.context() as m:
        m.setattr(folders, 'read_text', lambda f: f.read_text(encoding='utf-8'))
        m.setattr(folders, '_made_by', lambda tok, rules: ['BaseTokenizer', *(f'{r.__module__}.{r.__qualname__}' for r in rules)])
        assert folders.FolderTokenizer(path, BaseTokenizer).kept != want
    assert folders.FolderTokenizer(path, BaseTokenizer).kept == want


class Harm:
    "Runs a program when it is unpickled"
    def __init__(self, path): self.path = path
    def __reduce__(self): return os.system, (f'touch {self.path}',)


@pytest.mark.parametrize('name', ['counter.pkl','lengths.pkl','tokens.pth'])
def test_no_pickle_is_run(tmp_path, name):
    "A cache that came with the texts: its pickles are not opened, its tokens not believed"
    path,ran = text_folder(tmp_path/'texts'), tmp_path/'ran'
    cache = tmp_path/'texts_tok'
    want = [o.tolist() for o in TransformerDataLoaders.from_folder(path, bs=2).train_ds.tls[0]]
    (cache/'tokens.pth').unlink()
    (cache/'counter.pkl').write_bytes(pickle.dumps({}))
    if name == 'tokens.pth': torch.save(dict(made_by=[], texts=Harm(ran)), cache/name)
    else: (cache/name).write_bytes(pickle.dumps(Harm(ran)))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        dls = TransformerDataLoaders.from_folder(path, bs=2)
        refresh_tokens(path)
    assert not ran.exists() and [o.tolist() for o in dls.train_ds.tls[0]] == want


def test_flipped_bytes_in_kept_tokens(tmp_path):
    "Made anew, or no byte that matters: the tokens are never others"
    path = text_folder(tmp_path/'texts')
    file = tmp_path/'texts_tok'/'tokens.pth'
    want = folders.FolderTokenizer(path, BaseTokenizer).kept
    raw = file.read_bytes()
    for i in np.random.default_rng(0).integers(0, len(raw), 60):
        file.write_bytes(raw[:i] + bytes([raw[i]^255]) + raw[i+1:])
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            assert folders.FolderTokenizer(path, BaseTokenizer).kept == want


@pytest.mark.parametrize('harm', ['cut','other'])
def test_kept_tokens_that_are_broken(tmp_path, harm):
    "Said by name, and made anew"
    path = text_folder(tmp_path/'texts')
    file = tmp_path/'texts_tok'/'tokens.pth'
    want = folders.FolderTokenizer(path, BaseTokenizer).kept
    raw = bytearray(file.read_bytes())
    if harm == 'cut': raw = raw[:len(raw)//2]
    if harm == 'other': raw = b'no tokens at all'
    file.write_bytes(raw)
    with pytest.warns(UserWarning, match='tokens.pth.*made anew'): again = folders.FolderTokenizer(path, BaseTokenizer)
    assert again.kept == want == folders.FolderTokenizer(path, BaseTokenizer).kept


@pytest.mark.parametrize('kind', [tuple, list, set, np.array], ids=['tuple','list','set','array'])
def test_labels_in_containers(kind):
    "Several labels of a text, whatever holds them"
    df = pd.DataFrame(dict(text=['good film','bad plot']*20, label=[kind(['a','b']),kind(['a'])]*20))
    dls = TransformerDataLoaders.from_df(df, bs=8)
    assert [*dls.vocab[1]] == ['a','b'] and dls.one_batch()[1].shape == (8,2)
    for (x,y),row in zip(dls.valid_ds, dls.valid_ds.items.itertuples()): assert y.tolist() == [1., float(len(row.label) == 2)]
    learn = transformer_classifier_learner(dls, d_model=16, n_layers=1, n_heads=2)
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    assert {*learn.predict('good film')[0]} <= {'a','b'}


def test_rules_of_ones_own(tmp_path, monkeypatch):
    "A rule may change and keep its name, or have none: training and prediction get the same tokens each time"
    path,theirs = text_folder(tmp_path/'texts'), defaults.text_proc_rules
    for rule in (lambda t: t.replace('text', 'loud'), lambda t: t.replace('text', 'louder'), partial(re.sub, 'text', 'x')):
        monkeypatch.setattr(defaults, 'text_proc_rules', [*theirs, rule])
        dls = TransformerDataLoaders.from_folder(path, bs=1)
        assert encode_text(dls, 'neg text 0').tolist() in [o.tolist() for o in dls.train_ds.tls[0]]


def test_folder_that_cannot_be_kept(tmp_path):
    "A warning, and the tokens all the same"
    path = text_folder(tmp_path/'texts')
    (tmp_path/'texts_tok').write_text('a file where the folder should be')
    with pytest.warns(UserWarning, match='not kept'): tok = folders.FolderTokenizer(path, BaseTokenizer)
    assert len(tok.kept) == 8


def test_copies_in_folders(tmp_path):
    path = text_folder(tmp_path/'texts')
    (path/'valid'/'pos'/'0.txt').write_text('neg text 0')
    for f in (path/'valid').rglob('1.txt'): f.write_text(f'unlike the others: {f.parent.name}')
    (path/'valid'/'neg'/'0.txt').write_text('nor is this')
    with pytest.warns(UserWarning, match='1 of 4 validation texts are in the training set'):
        TransformerDataLoaders.from_folder(path, bs=2)


@pytest.mark.parametrize('tok', [CharTokenizer(), BPETokenizer(300), BaseTokenizer()])
def test_folder_with_a_tokenizer(tmp_path, tok):
    "The same texts, labels, sets and tokens as from a frame; no cache of other tokens is read"
    path = text_folder(tmp_path/'texts')
    (path/'train'/'pos'/'0.txt').write_bytes(b'Good & "pos"\r\n  text')
    (path.parent/'texts_tok').mkdir()
    files = get_text_files(path)
    for kw in (dict(is_lm=True, seq_len=4), dict(valid_pct=0.5, seed=1), dict(valid='train', train='valid', vocab=['pos','neg'])):
        dls = TransformerDataLoaders.from_folder(path, tok_tfm=tok, bs=2, **kw)
        split = RandomSplitter(0.5, seed=1)(files) if 'seed' in kw else [[i for i,f in enumerate(files) if f.parent.parent.name == kw.get(n, n)] for n in ('train','valid')]
        for ds,idxs in zip((dls.train_ds, dls.valid_ds), split):
            want = [files[i] for i in idxs]
            assert [o.tolist() for o in ds.tls[0]] == [text_list(dls).infer(t).tolist() for t in tokenize_like(dls, want)]
            if 'is_lm' not in kw: assert [dls.vocab[1][o] for o in ds.tls[1]] == [f.parent.name for f in want]
    assert dls.vocab[1] == ['neg','pos'] and not (path.parent/'texts_tok'/'counter.pkl').exists()


@pytest.mark.parametrize('tok', [None, CharTokenizer()])
def test_folders_are_labels_of_new_files(tmp_path, tok):
    "Whatever cut the texts, of a generator, too; a folder that is no label is named"
    path = text_folder(tmp_path/'texts')
    dls = TransformerDataLoaders.from_folder(path, tok_tfm=tok, bs=2)
    files = get_text_files(path/'valid')
    for items in (files, list(files), (f for f in files)):
        got = dls.test_dl(items, with_labels=True).dataset
        assert [y.item() for _,y in got] == [int(f.parent.name == 'pos') for f in files]
        assert all(x.equal(z) for (x,_),(z,) in zip(got, dls.test_dl(list(files)).dataset))
    other = path/'other'/'0.txt'
    other.mk_write('a text')
    if tok is not None:
        with pytest.raises(ValueError, match="label 'other' of column 'label' is none of .'neg', 'pos'.*index 0"): dls.test_dl([other], with_labels=True)

@pytest.mark.parametrize('tok', [None, CharTokenizer()])
@pytest.mark.parametrize('kw', [dict(seq_len=0), dict(text_vocab='abc'), dict(backwards=2)], ids=str)
def test_folder_options(tmp_path, tok, kw):
    "They are named whatever cuts the texts, before one is read"
    with pytest.raises(ValueError, match=f'{[*kw][0]}=.* is out of range'): TransformerDataLoaders.from_folder(tmp_path, tok_tfm=tok, **kw)

def test_folder_without_texts(tmp_path):
    (tmp_path/'a.txt').write_text('a text')
    with pytest.raises(ValueError, match="no text file .* under 'train' or 'valid': name the folders, or give valid_pct"): TransformerDataLoaders.from_folder(tmp_path)
    with pytest.raises(ValueError, match='no text file'): TransformerDataLoaders.from_folder(tmp_path/'nowhere', valid_pct=0.2)


@pytest.mark.parametrize('folders,kw,why', [
    ('train test', {}, "valid='valid' has no .*; such are in 'test' and 'train': give valid='test'"), ('train valid', dict(valid='vaild'), "valid='vaild' .*give valid='valid'"),
    ('train valid', dict(train='trian'), "train='trian' has no .*give train='train'"), ('train', {}, "are in 'train': give valid_pct=0.2")])
@pytest.mark.parametrize('tok', [None, BaseTokenizer()])
def test_folder_of_a_set_without_texts(tmp_path, folders, kw, why, tok):
    "It is named with those that are there, as the layout train/ and test/ is common; what is named works"
    for o in folders.split():
        for label in ('neg','pos'):
            for i in range(2): (tmp_path/'d'/o/label/f'{i}.txt').mk_write(f'a {label} text {i} of {o}')
    (tmp_path/'d'/'unsup'/'0.txt').mk_write('no label')
    def make(**kw): return TransformerDataLoaders.from_folder(tmp_path/'d', bs=2, tok_tfm=tok, **kw)
    with pytest.raises(ValueError, match=why) as e: make(**kw)
    option,value = re.search(r"give (\w+)='?([\w.]+)", str(e.value)).groups()
    dls = make(**{**kw, option:value if option != 'valid_pct' else float(value)})
    assert len(dls.train_ds) and len(dls.valid_ds)


# ---------------------------------------------------------------- tokens in use

@pytest.fixture(scope='module')
def lines():
    "Loaders with fastai's own tokenizer over texts with line breaks"
    df = frame(40).assign(review=lambda o: o.text+'.\n\n  See "also":\n \n  it').drop(columns='text')
    dls = TransformerDataLoaders.from_df(df, text_col='review', label_col='label', valid_col='is_valid', bs=4, n_workers=0)
    return df,dls


def test_fastai_tokenizes_predictions_otherwise(lines):
    "The fault that `tokenize_like` spares: if this fails, fastai has mended it"
    df,ours = lines
    dls = TextDataLoaders.from_df(df, text_col='review', label_col='label', valid_col='is_valid', bs=4)
    test = lambda dls: TextDataLoaders.test_dl(dls, [df.review[4]]).dataset[0][0]
    assert not torch.equal(test(dls), dls.valid_ds[0][0])
    assert torch.equal(test(ours), ours.valid_ds[0][0])


def test_test_dl_tokenizes_as_in_training(lines):
    df,dls = lines
    valid = df[df.is_valid]
    want = [x for x,_ in dls.valid_ds]
    for items in (list(valid.review), valid.review, valid.review.to_numpy(), tuple(valid.review), valid):
        got = [x for x, in dls.test_dl(items, num_workers=0).dataset]
        assert len(got) == len(want) and all(torch.equal(a, b) for a,b in zip(got, want))
    assert torch.equal(dls.test_dl(valid.review.iloc[0]).dataset[0][0], want[0])
    assert torch.equal(dls.test_dl([valid.iloc[1]]).dataset[0][0], want[1])
    with pytest.raises(ValueError, match="no column is called 'review'"): dls.test_dl(valid.rename(columns=dict(review='text')))
    x,y = dls.test_dl(valid, with_labels=True, num_workers=0, bs=8).one_batch()
    assert sorted(y.tolist()) == sorted(y.item() for _,y in dls.valid_ds)


@pytest.mark.parametrize('kw', [dict(text_col='review'), dict(text_col=['review', 'label']), dict(text_col='review', tok_text_col='tokens'),
                                dict(text_col='text'), dict(text_col='text', tok_tfm=CharTokenizer())])
def test_test_dl_of_tokens(lines, kw):
    "A frame that is tokenized, as fastai's interpretations pass it, stays so"
    df = lines[0].assign(text=lambda o: o.review, y=lambda o: o.label)
    if kw['text_col'] != 'text': df = df.drop(columns='text')
    dls = TransformerDataLoaders.from_df(df, label_col='y', valid_col='is_valid', bs=4, n_workers=0, **kw)
    got = dls.test_dl(dls.valid_ds.items[2:5], with_labels=True).dataset
    assert len(got) == 3 and all(torch.equal(a, c) and b == d for (a,b),(c,d) in zip(got, [dls.valid_ds[i] for i in (2,3,4)]))
    learn = learner(dls, 2)
    with learn.no_bar(): learn.get_preds(dl=dls.test_dl(dls.valid_ds.items[:3]))


@pytest.mark.parametrize('folder', [False, True])
def test_plot_top_losses(lines, tmp_path, monkeypatch, folder):
    "fastai's table of the worst guesses, from loaders of a frame and of a folder"
    shown = []
    monkeypatch.setattr('fastai.text.learner.display_df', shown.append)
    dls = TransformerDataLoaders.from_folder(text_folder(tmp_path/'texts'), bs=2, num_workers=0) if folder else lines[1]
    learn = learner(dls, 2)
    with learn.no_bar(): ClassificationInterpretation.from_learner(learn).plot_top_losses(2)
    assert len(shown[0]) == 2 and shown[0].target.isin(dls.vocab[1]).all() and shown[0].loss.astype(float).min() > 0


def test_test_dl_errors(lines):
    _,dls = lines
    for empty in ([], (), pd.DataFrame(dict(review=[]))):
        with pytest.raises(ValueError, match='no texts'): dls.test_dl(empty)
    with pytest.raises(ValueError, match=r'None \(number 1 of 2\) is no text'): dls.test_dl(['a', None])
    with pytest.raises(ValueError, match="'review' has no text"): dls.test_dl(pd.DataFrame(dict(review=['a', None])))
    with pytest.raises(ValueError, match="no column is called 'review'.*'texts'"): dls.test_dl(pd.DataFrame(dict(texts=['a'])))
    named = TransformerDataLoaders.from_df(frame(), valid_col='is_valid', **FAST)
    with pytest.raises(ValueError, match="no column is called 'text'.*'review'"): named.test_dl(pd.DataFrame(dict(review=['a'])))
    with pytest.raises(ValueError, match="2 columns are called 'text'"): named.test_dl(pd.concat([frame(), frame()[['text']]], axis=1))
    with pytest.raises(ValueError, match='holds .*where a text is needed, in 1 of 2'): named.test_dl(pd.DataFrame(dict(text=['a', ['b']])))
    with pytest.raises(ValueError, match="no columns are called 'label': the data frame has .'review', 'lable'."): dls.test_dl(pd.DataFrame(dict(review=['a'], lable=['pos'])), with_labels=True)


def test_a_dict_is_one_text(lines):
    "The column that it names is read, and asked for if it is missing"
    dls = lines[1]
    same = zip(dls.test_dl({'review':'A text.'}).dataset, dls.test_dl('A text.').dataset)
    assert all(torch.equal(a[0], b[0]) for a,b in same)
    assert as_texts({'review':'a text'}, 'review') == ['a text']
    with pytest.raises(ValueError, match="no column 'text' among"): as_texts({'review':'a text'})


def test_tokenize_like_for_plain_loaders(lines):
    df,_ = lines
    plain = TextDataLoaders.from_df(df, text_col='review', label_col='label', valid_col='is_valid', bs=4)
    for items in (list(df.review[df.is_valid]), df[df.is_valid]):
        got = plain.test_dl(tokenize_like(plain, items)).dataset
        assert all(torch.equal(a[0], b[0]) for a,b in zip(got, plain.valid_ds))


def test_predictions_agree_and_survive_export(lines, tmp_path):
    df,dls = lines
    learn = one_step(dls, 2)
    with learn.no_bar():
        preds = learn.get_preds()[0]
        assert torch.allclose(learn.get_preds(dl=dls.test_dl(df[df.is_valid]))[0], preds, atol=1e-6)
    one = tmp_path/'learner.pkl'
    learn.dls.path = learn.path = tmp_path
    learn.export(one)
    back = load_learner(one)
    assert isinstance(back.dls, TransformerDataLoaders)
    x = back.dls.test_dl(df[df.is_valid].review.iloc[0]).dataset[0][0]
    assert torch.equal(x, dls.valid_ds[0][0])


# ---------------------------------------------------------------- any loaders

def plain(df, y='label', is_lm=False, y_block=None, y_col='label', splitter=None, **kw):
    "Loaders as a user makes them, without this library"
    text = TextBlock.from_df('text', min_freq=1, n_workers=0, is_lm=is_lm, tok=BaseTokenizer())
    blocks = text if is_lm else (text, ifnone(y_block, CategoryBlock))
    get_y = None if is_lm else ColReader(y_col) if y == 'label' else y
    return DataBlock(blocks, get_x=ColReader('text'), get_y=get_y, splitter=ifnone(splitter, ColSplitter())).dataloaders(df, bs=4, num_workers=0, **kw)


def test_check_dls_lets_good_loaders_pass():
    check_dls(plain(frame()))
    check_dls(plain(frame(), is_lm=True))
    check_dls(plain(frame(stars=1.), y_block=RegressionBlock, y_col='stars'))
    check_dls(plain(frame(a=1, b=0), y_block=MultiCategoryBlock(encoded=True, vocab=['a', 'b']), y_col=['a', 'b']))
    check_dls(plain(frame(), y_block=MultiCategoryBlock, y=lambda o: [o.label]))
    check_dls(plain(frame(), y_block=CategoryBlock(add_na=True)))
    check_dls(plain(frame(), splitter=RandomSplitter(0.))) # no validation set is no fault


@pytest.mark.parametrize('y', ['label', lambda o: o['label'], lambda o: o['label'].upper()])
def test_check_dls_unknown_label(y):
    df = frame()
    df.loc[4, 'label'] = 'neutral'
    with pytest.raises(ValueError, match=r"(?i)'neutral' in 1 of 4 validation rows \(numbers \[0\]\) is not in the vocabulary.*\['neg', 'pos'\]"):
        check_dls(plain(df, y=y))


def test_check_dls_many_and_missing_labels():
    df = frame(tags=['a;b']*19+['a;c'])
    y = ColReader('tags', label_delim=';')
    with pytest.raises(ValueError, match="'c' in 1 of 4 validation rows"): check_dls(plain(df, y=y, y_block=MultiCategoryBlock))
    with pytest.raises(ValueError, match='label nan in 1 of 16 training rows'): check_dls(plain(frame(label=['a']*10+[np.nan]+['a']*9)))
    with pytest.raises(ValueError, match='label nan in 1 of 16 training rows.*no target'):
        check_dls(plain(frame(stars=[1.]*10+[np.nan]+[2.]*9), y_block=RegressionBlock, y_col='stars'))


def test_check_dls_no_batches():
    with pytest.raises(ValueError, match=r'validation set has \d+ tokens, fewer than 101.*bs=100 \(seq_len=72\)'): check_dls(plain(frame(), is_lm=True, val_bs=100))
    dls = plain(frame())
    dls.train = dls.train.new(bs=50)
    with pytest.raises(ValueError, match='training set has 16 texts, fewer than 50'): check_dls(dls)


def test_check_dls_no_text():
    with pytest.raises(TypeError, match='list is no DataLoaders'): check_dls([1])
    with pytest.raises(TypeError, match='NoneType holds no tokens'): check_dls(DataLoaders.from_dsets([1,2], [3], bs=1))
    labels = DataBlock((TransformBlock, CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=ColSplitter()).dataloaders(frame(), bs=2)
    with pytest.raises(TypeError, match='CategoryMap holds no tokens'): check_dls(labels)


def test_vocabulary_of_every_kind_of_loaders():
    for dls in (plain(frame()), plain(frame(), is_lm=True), plain(frame(stars=1.), y_block=RegressionBlock, y_col='stars')):
        assert pad_index(dls) == 1 and text_vocab(dls)[2] == BOS
    assert pad_index(L(['a', PAD])) == 1
    with pytest.raises(ValueError, match="'xxpad' is not among the 1 tokens"): pad_index(['a'])
    for o in (None, [], L(), [1, 2]):
        with pytest.raises(TypeError, match='holds no tokens'): text_vocab(o)


@pytest.mark.parametrize('func,n_reads', [(False, 0), (True, 10000)])
def test_check_dls_is_quick(func, n_reads, monkeypatch):
    "A column of labels is looked at as a whole; a function that gives them is called for 5,000 rows of each set at most"
    n,reads,read = 25000,[],ColReader.__call__
    def count(self, *args, **kwargs):
        if 'label' in self.cols: reads.append(args)
        return read(self, *args, **kwargs)
    def label(o):
        reads.append(o)
        return o['label']
    monkeypatch.setattr(ColReader, '__call__', count)
    df = pd.DataFrame(dict(text='a b', label=['x', 'y']*(n//2), is_valid=[False, False, True, True]*(n//4)))
    dls = plain(df, y=label if func else 'label', y_block=CategoryBlock(vocab=['x', 'y'])) # a vocabulary, so that fastai need not read every row itself
    assert reads                                                            # the count counts: fastai tries a row
    reads.clear()
    start = time.process_time()
    check_dls(dls)
    if not func: assert time.process_time()-start < 1
    assert len(reads) == n_reads


# ---------------------------------------------------------------- text without spaces

ROWS = dict(text_col='text', label_col='label', valid_col='is_valid', bs=8)

def joined_df(n=80):
    "`texts_df` without spaces: each text is one word, and comes once"
    df = texts_df(n)
    return df.assign(text=[f'{"".join(t.split())}{i}' for i,t in enumerate(df.text)])

UNKNOWN = r'\d+% of the training tokens.*xxunk.*BPETokenizer\(2000\) or CharTokenizer\(\)'

def unknown_said(f):
    "The warnings of `f()` about unknown tokens"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        f()
    return [str(w.message) for w in said if re.search(UNKNOWN, str(w.message))]

loaders_of_texts = dict(
    ours=lambda df, **kw: TransformerDataLoaders.from_df(df, **{**ROWS, 'n_workers':0, 'tok_tfm':BaseTokenizer(), **kw}),
    fastais=lambda df, **kw: transformer_classifier_learner(make_dls(df, **kw), **SMALL).dls,
    lm=lambda df, **kw: transformer_lm_learner(make_dls(df, is_lm=True, seq_len=8, **kw), **SMALL).dls,
    stream=lambda df, **kw: LMDataLoaders.from_df(df, text_col='text', valid_col='is_valid', bs=2, **{'tok_tfm':BaseTokenizer(), **kw}))

@pytest.mark.parametrize('kind', loaders_of_texts)
def test_unknown_texts_are_warned_of(kind):
    "Of text without spaces, not of words, and not when the remedy is followed"
    make = loaders_of_texts[kind]
    assert unknown_said(lambda: make(joined_df()))
    assert not unknown_said(lambda: make(texts_df()))
    for tok in (BPETokenizer(2000), CharTokenizer()): assert not unknown_said(lambda: make(joined_df(), tok_tfm=tok))

def test_rare_words(monkeypatch, tmp_path):
    "Of little labelled text all words of the training rows are known; of a language model's, of much, and on request, what comes thrice"
    df = pd.DataFrame(dict(text=['one two', 'one two']*8 + ['seldom one', 'later one'], label=['a','b']*9, v=[False]*17 + [True]))
    kw = dict(text_col='text', valid_col='v', tok_tfm=BaseTokenizer(), bs=2, n_workers=0)
    words = lambda df=df, **opts: {*TransformerDataLoaders.from_df(df, **{**kw, 'label_col':'label', **opts}).vocab[0]} & {'one','two','seldom','later'}
    assert words() == {'one','two','seldom'} and words(min_freq=3) == {'one','two'}
    assert {*TransformerDataLoaders.from_df(df, is_lm=True, seq_len=4, **kw).vocab}.isdisjoint({'seldom','later'})
    path = text_folder(tmp_path/'texts')
    (path/'train'/'pos'/'new.txt').write_text('pos text '*20 + 'seldom')
    assert 'seldom' in TransformerDataLoaders.from_folder(path, bs=2).vocab[0]
    monkeypatch.setattr('fastai_txf.text.batches._few_tokens', 30)
    assert words() == {'one','two'}

def test_mostly_rare_words():
    "Clauses that come once, among marks that come often, are kept and warned of; characters are not"
    df = texts_df()
    df['text'] = [f'{"".join(t.split())}{i} , {i}{"".join(t.split())}' for i,t in enumerate(df.text)]
    make = lambda **kw: TransformerDataLoaders.from_df(df, **{**ROWS, 'n_workers':0, **kw})
    with pytest.warns(UserWarning, match=r'\d\d% of the words come once or twice in the training texts.*BPETokenizer'): dls = make(tok_tfm=BaseTokenizer())
    assert len(dls.vocab[0]) > len(df)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        make(tok_tfm=CharTokenizer())
    assert not [w for w in said if 'once or twice' in str(w.message)]

def test_few_english_texts_are_not_warned_of():
    "Of 48 docstrings a third or more is rarer than `min_freq=3`"
    for words in (12, 40):
        df = docstrings_df(('numpy','torch'), max_per_class=30, max_words=words, min_words=5)
        assert not unknown_said(lambda: TransformerDataLoaders.from_df(df, **ROWS))

@pytest.mark.parametrize('use', [baseline, lambda dls: suggest_config(dls, 0.001)], ids=['baseline','suggest_config'])
def test_recipes_warn_of_unknown_texts(use): assert unknown_said(lambda: use(make_dls(joined_df())))

def test_validation_in_another_language():
    "The set is named"
    df = texts_df()
    other = df.text.where(~df.is_valid, [f'satz{i} wort{i}' for i in range(len(df))])
    with pytest.warns(UserWarning, match='% of the validation tokens'): TransformerDataLoaders.from_df(df.assign(text=other), **ROWS, tok_tfm=BaseTokenizer())

def test_one_class_of_unknown_texts(tmp_path):
    "The remedy is another tokenizer, not another rate"
    learn = quiet(transformer_classifier_learner(make_dls(joined_df()), path=tmp_path, **SMALL))
    with pytest.warns(UserWarning, match='are one class.*' + UNKNOWN) as said: learn.fit(1, 0., wd=0.)
    assert not [w for w in said if 'rate was too high' in str(w.message)]

def test_a_long_stream_is_looked_at_in_part():
    "100,000 ids are copied, whatever the length"
    ids = np.tile(np.arange(3, 8, dtype=np.int32), 400_000)
    vocab = ['xxunk','xxpad','xxbos',*'abcdefgh']
    dls = LMDataLoaders.from_ids(ids, ids[:1000], vocab, bs=4, seq_len=16)
    assert len(_some_ids(dls.train_ds)[0]) == 100_000


# ---------------------------------------------------------------- written in two ways

SPELLED = [('x{} ', 'x{}'), ('x{}', 'X{}'), ('x  \n{}', 'x {}'), ('caf\u00e9 {}', 'cafe\u0301 {}'), ('word '*12 + '{}', 'Word '*12 + '{}')]

@pytest.mark.parametrize('a,b', SPELLED)
def test_near_copies(a, b):
    "Copies that differ in case, white space or the form of accents are counted, and the remedy leaves none"
    df = unlike()
    train,valid = df.index[~df.is_valid], df.index[df.is_valid]
    df.loc[train[0], 'text'],df.loc[valid[0], 'text'] = a.format('x7'), b.format('x7')
    with pytest.warns(UserWarning, match=rf'1 of {len(valid)} validation texts are in the training set') as said: check_df(df, 'text', valid_col='is_valid')
    df = eval(re.search(r'with (df\[~df.*\])$', str(said[0].message))[1])
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        check_df(df, 'text', valid_col='is_valid')

def test_near_copies_are_found_quickly():
    "Whole texts are compared only where their first words are equal"
    df = pd.DataFrame(dict(text=[f'{i} ' + 'W\u00f6rter '*300 for i in range(20_000)], is_valid=[i%5 == 4 for i in range(20_000)]))
    start = time.process_time()
    check_df(df, 'text', valid_col='is_valid')
    assert time.process_time()-start < 2

def twins_of(labels, **kw):
    "The warning's code for a column of labels"
    df = unlike().assign(label=[labels[i//2 % len(labels)] for i in range(20)], is_valid=[i%2 for i in range(20)])
    with pytest.warns(UserWarning, match='written in several ways') as said: check_df(df, 'text', 'label', 'is_valid', **kw)
    return df, str(said[0].message)

@pytest.mark.parametrize('labels,kw,names', [
    (['caf\u00e9','cafe\u0301'], {}, "normalize('NFC')"), (['pos','Pos '], {}, 'str.lower()'), (['\uff41  b','A b'], {}, 'NFKC'),
    (['numpy; returns','numpy;returns'], dict(label_delim=';'), r"\s*;\s*"), (['a|b','A | b'], dict(label_delim='|'), 'str.lower()')])
def test_labels_in_two_spellings(labels, kw, names):
    "What the warning proposes makes them one, and it proposes no more than is needed"
    df,said = twins_of(labels, **kw)
    assert names in said
    fixed = df.assign(label=eval('df.label' + re.search(r'use (\..*) on the column', said)[1]))
    assert fixed.label.nunique() == 1
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        if kw: check_df(fixed, 'text', 'label', 'is_valid', **kw)

def test_labels_in_two_spellings_in_lists():
    "Lists have no `.str` of their labels: nothing is proposed that would make them missing"
    assert twins_of([['a','b'], ['A','b']])[1].endswith('write each in one way')

def test_lists_with_a_delimiter():
    "The remedy is to leave it out: strings made of lists would be labels like ['a']"
    df = frame(label=[['a'], ['a','b']]*10)
    with pytest.raises(ValueError, match="holds .'a'. .list.*leave label_delim out") as e: check_df(df, 'text', 'label', 'is_valid', ';')
    assert 'astype' not in str(e.value)

def test_delimiter_that_no_row_has():
    "Each row would be one label"
    df = unlike().assign(label=['a,b','a','b','a,b']*5, is_valid=[i > 11 for i in range(20)])
    with pytest.warns(UserWarning, match="label_delim=';' is in no row of column 'label'.*'a,b'"): check_df(df, 'text', 'label', 'is_valid', ';')
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        check_df(df, 'text', 'label', 'is_valid', ',')

def test_decimal_targets():
    "torch takes none; the remedy does"
    df = frame(label=[Decimal('1.5'), Decimal(2)]*10)
    def make(df): return TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', y_block=RegressionBlock(), **FAST)
    with pytest.raises(ValueError, match=r"Decimal.*df\['label'\].astype\(float\)"): make(df)
    assert make(df.assign(label=df['label'].astype(float))).c == 1


# ---------------------------------------------------------------- all texts of a set

class Upper(ColReader):
    "A reader that looks at the whole row"
    def __call__(self, r, **kwargs): return r['label'].upper() + str(r.name % 2)

def odd_rows():
    "Targets of all kinds, an empty text, and words that no vocabulary has"
    n = 20
    return frame(n, text=['' if i == 3 else f'a {"good" if i%2 else "bad"} film number {i//4} {i}' for i in range(n)], tags=[';'.join(['x','y'][:1+i%2]) for i in range(n)],
        lists=[['x','y'][:1+i%2] for i in range(n)], tuples=[('x','y')[:1+i%2] for i in range(n)], arrays=[np.array(['x','y'][:1+i%2]) for i in range(n)],
        a=[i%2 == 0 for i in range(n)], b=[i%3 == 0 for i in range(n)], whole=[i%3 for i in range(n)], price=np.linspace(0.1, 7e5, n), small=np.linspace(0.1, 2, n).astype(np.float32), kind=pd.Categorical(['u','v']*(n//2)))

TARGETS = dict(label={}, whole={}, kind={}, a={}, tags=dict(label_delim=';'), lists={}, tuples={}, arrays={}, price={}, small={})

@pytest.mark.parametrize('col,kw', [*TARGETS.items(), (['a','b'], {}), (['price','small'], {}), (1, {})], ids=str)
@pytest.mark.parametrize('index', [False,True], ids=['plain','named'])
def test_all_ids_are_those_of_a_loop(col, kw, index, monkeypatch):
    "Texts and targets, item by item; rows of the frame are not made for it"
    df = odd_rows()
    if index: df.index = [f'r{i}' for i in range(len(df))]
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col=col, valid_col='is_valid', num_workers=0, **kw, **{**FAST, 'min_freq':3})
    for ds in (dls.train_ds, dls.valid_ds): same_as_a_loop(ds)
    ds = dls.train_ds
    get = L._get
    monkeypatch.setattr(L, '_get', lambda self, i: pytest.fail('a row is made') if isinstance(self.items, pd.DataFrame) else get(self, i))
    assert len(labelled_ids(ds)[0]) == 16

def same_as_a_loop(ds):
    "Equal numbers of equal types"
    ids,y = labelled_ids(ds)
    vocab = ds.tls[0].tfms.fs[-1]
    want = [ds[i] for i in range(len(ds))]
    assert len(ids) == len(want) and all(a.dtype == np.int64 and a.tolist() == b.tolist() for a,(b,_) in zip(ids, want))
    assert all(type(b) is TensorText and b.dtype == torch.int64 for b,_ in want)
    if not isinstance(ds.tls[0].items, pd.DataFrame): return
    assert [a.tolist() for a in ids] == [Numericalize.encodes(vocab, toks).long().tolist() for toks in ds.tls[0].items.text]
    by_row = torch.stack([torch.as_tensor(t).as_subclass(torch.Tensor) for _,t in want]).numpy()
    assert y.dtype == by_row.dtype and np.array_equal(y, by_row)

@pytest.mark.parametrize('kw', [dict(label_col='label'), dict(label_col=1), dict(text_col=0, label_col='tags', label_delim=';', y_block=MultiCategoryBlock), dict(label_col='price', y_block=RegressionBlock)], ids=['name','position','positions','number'])
def test_all_ids_of_fastais_loaders(kw):
    "With names and with positions of columns"
    df = odd_rows()[['text','label','is_valid','tags','price']]
    df['text'] = df.text.where(df.text != '', 'a film')
    dls = TextDataLoaders.from_df(df, valid_col='is_valid', num_workers=0, **{'text_col':'text', **kw, **{k:v for k,v in FAST.items() if k != 'min_freq'}})
    for ds in (dls.train_ds, dls.valid_ds): same_as_a_loop(ds)

@pytest.mark.parametrize('get_y', [Upper('label'), ColReader('label', pref='is ', suff='.'), lambda r: r.label[:1], Pipeline([ColReader('label'), str.upper])], ids=['own','affixes','function','two'])
def test_all_ids_by_ones_own_reader(get_y):
    "What looks at a row gets one"
    block = DataBlock((TextBlock.from_df('text', tok=BaseTokenizer(), n_workers=0), CategoryBlock), get_x=ColReader('text'), get_y=get_y, splitter=ColSplitter())
    df = odd_rows()
    dls = block.dataloaders(df.assign(text=df.text.where(df.text != '', 'a film')), bs=4, num_workers=0)
    for ds in (dls.train_ds, dls.valid_ds): same_as_a_loop(ds)

def test_all_ids_of_two_columns_of_one_name():
    "The labels of both"
    df = odd_rows()[['text','label','is_valid','kind']].rename(columns=dict(kind='label'))
    df['text'] = df.text.where(df.text != '', 'a film')
    dls = TextDataLoaders.from_df(df, text_col='text', label_col='label', y_block=MultiCategoryBlock, valid_col='is_valid', num_workers=0, tok_tfm=BaseTokenizer(), n_workers=0, bs=4)
    same_as_a_loop(dls.train_ds)


# ---------------------------------------------------------------- said in time

WHOLE = [float(i%3) for i in range(20)]

@pytest.mark.parametrize('labels,kw,c', [(WHOLE, dict(y_block=RegressionBlock), 1), ([*map(int, WHOLE)], {}, 3),
                                         ([o+.5 for o in WHOLE], {}, 1)])
def test_whole_floats(labels, kw, c):
    "Integers that a missing value made floats are no numbers to predict; both remedies work"
    make = lambda **kw: TransformerDataLoaders.from_df(frame().assign(label=labels), text_col='text', label_col='label', valid_col='is_valid', **FAST, **kw)
    if labels is WHOLE:
        with pytest.raises(ValueError, match=r"column 'label' holds whole numbers.*astype\(int\).*RegressionBlock\(\)"): make()
    assert make(**kw).c == c


def test_whole_floats_in_several_columns():
    "There is one way to read them"
    df = frame().assign(a=WHOLE, b=WHOLE)
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col=['a','b'], valid_col='is_valid', **FAST)
    assert dls.train_ds[0][1].shape == (2,)


def broken(text): return text + [][1]

@pytest.mark.parametrize('is_lm', [True,False])
def test_error_of_a_rule(is_lm):
    "It is the rule's own; too few tokens are still named"
    kw = dict(text_col='text', label_col='label', valid_col='is_valid', is_lm=is_lm, **{**FAST, 'bs':64})
    with pytest.raises(IndexError, match='list index'): TransformerDataLoaders.from_df(frame(), rules=[broken], **kw)
    if is_lm:
        with pytest.raises(ValueError, match='fewer than 65 tokens'): TransformerDataLoaders.from_df(frame()[:12], **kw)


def unlike(): return frame().assign(text=lambda o: [f'{t} number{i}' for i,t in enumerate(o.text)])

loaders_of = dict(classes=lambda df: TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', **FAST),
                  lm=lambda df: TransformerDataLoaders.from_df(df, text_col='text', is_lm=True, valid_col='is_valid', **FAST),
                  stream=lambda df: LMDataLoaders.from_df(df, text_col='text', valid_col='is_valid', bs=2, tok_tfm=BaseTokenizer),
                  columns=lambda df: TransformerDataLoaders.from_df(df, text_col=['text','label'], label_col='label', valid_col='is_valid', **FAST),
                  check=lambda df: check_df(df, 'text', valid_col='is_valid'))

@pytest.mark.parametrize('kind', loaders_of)
def test_copies_across_the_split(kind):
    "A warning that counts them, and nothing is said of copies within a set"
    df = unlike()
    train,valid = df.index[~df.is_valid], df.index[df.is_valid]
    df.loc[train[1], 'text'] = df.text[train[0]]
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        loaders_of[kind](df)
    df.loc[valid[:2], 'text'] = df.text[train[0]]
    df.loc[valid[:2], 'label'] = df.label[train[0]]
    with pytest.warns(UserWarning, match=rf'2 of {len(valid)} validation texts are in the training set.*drop_duplicates') as said: loaders_of[kind](df)
    assert len(said) == 1

@pytest.mark.parametrize('items', [['a good film'], pd.Series(['a good film']), 'a good film', [['a', 'film']]], ids=['list', 'series', 'text', 'tokens'])
def test_labels_need_a_frame(items):
    dls = TransformerDataLoaders.from_df(frame(), label_col='label', valid_col='is_valid', **FAST)
    with pytest.raises(ValueError, match=r"labels \(with_labels=True\).*frame.*'label'"): dls.test_dl(items, with_labels=True)
    for row in (frame()[:1], frame().iloc[0], frame().iloc[0].to_dict()): assert len(dls.test_dl(row, with_labels=True).one_batch()) == 2


def test_rows_with_labels():
    "A label that is not known is named in rows as it is in a frame; rows may come in a list, a tuple, an `L` or a generator"
    dls = TransformerDataLoaders.from_df(frame(), label_col='label', valid_col='is_valid', **FAST)
    rows = [dict(text='a good film', label=o) for o in ('pos','neg')]
    for make in (list, tuple, L, iter): assert [y.item() for _,y in dls.test_dl(make(rows), with_labels=True).dataset] == [1,0]
    for items in (dict(text='a', label='odd'), [*rows, dict(text='a', label='odd')], frame(label='odd').iloc[0]):
        with pytest.raises(ValueError, match="label 'odd' of column 'label' is none of .'neg', 'pos'"): dls.test_dl(items, with_labels=True)

def test_labels_where_there_are_none():
    "A language model's loaders have none to ask for, those of folders take them from the paths"
    dls = TransformerDataLoaders.from_df(frame(60)[['text','is_valid']], is_lm=True, valid_col='is_valid', seq_len=5, **FAST)
    assert len(dls.test_dl(['a good film of the year']*9, with_labels=True))

def test_a_column_of_one_category():
    "One distinct text as a category is a text; a number in its place is named"
    dls = TransformerDataLoaders.from_df(frame(), label_col='label', valid_col='is_valid', **FAST)
    one = pd.DataFrame(dict(text=pd.Series(['a good film'], dtype='category')))
    assert dls.test_dl(one).one_batch()[0].equal(dls.test_dl(['a good film']).one_batch()[0])
    with pytest.raises(ValueError, match='holds 3 .int. where a text is needed'): dls.test_dl(pd.DataFrame(dict(text=pd.Series([3], dtype='category'))))

@pytest.mark.parametrize('labels,kw', [(['x']*20, {}), (['x','y']*10, {}), (['x;y']*20, dict(label_delim=';'))])
def test_columns_of_categories(labels, kw):
    "They are what they hold, in loaders, in `test_dl` and in fastai's loaders, with copies across the split, too"
    df = frame(label=labels)
    df.loc[19, 'text'] = df.loc[0, 'text']
    both = []
    for d in (df, df.assign(text=df.text.astype('category'), label=df.label.astype('category'))):
        with pytest.warns(UserWarning, match='validation texts are in the training set'): dls = TransformerDataLoaders.from_df(d, label_col='label', valid_col='is_valid', **kw, **FAST)
        both.append([[o.tolist() for o in b] for b in (*dls.valid_ds, *dls.test_dl(d, with_labels=True).dataset)])
        check_dls(TextDataLoaders.from_df(d, text_col='text', label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=4, **kw, **({'y_block':MultiCategoryBlock} if kw else {})))
    assert both[0] == both[1] and d.dtypes.text == 'category' and d.dtypes.label == 'category'

def test_label_columns_of_categories_or_sparse():
    "Several of them are those that pandas keeps as it is used to"
    df = frame(a=['p']*20, b=['q','r']*10)
    def targets(df, cols):
        dls = TransformerDataLoaders.from_df(df, label_col=cols, valid_col='is_valid', **FAST)
        assert dls.test_dl(df, with_labels=True).one_batch()[1].shape[1] == 3
        return [*dls.vocab[1]], [y.tolist() for _,y in dls.train_ds]
    assert targets(df.astype(dict(a='category', b='category')), ['a','b']) == targets(df, ['a','b'])
    dense,sparse = [pd.concat([df, pd.get_dummies(pd.Series(['x','y','z','x']*5), sparse=o)], axis=1) for o in (False,True)]
    assert targets(sparse, [*'xyz']) == targets(dense, [*'xyz'])
    assert label_kind(df.assign(y=pd.arrays.SparseArray([.5,1.]*10)), 'y') == 'regression'

@pytest.mark.parametrize('item', [None, 3, 2.5])
def test_test_dl_of_no_text(item):
    dls = TransformerDataLoaders.from_df(frame(), label_col='label', valid_col='is_valid', **FAST)
    with pytest.raises(TypeError, match=rf'^{item} is a {type(item).__name__}: give a text, a list of texts or a data frame'): dls.test_dl(item)

@pytest.mark.parametrize('loaders', [TextDataLoaders, TransformerDataLoaders])
def test_one_column_of_0_and_1_is_one_label(loaders):
    "A block of several labels gets them as a list: a single number would have no place in it"
    df = frame().assign(good=[i%2 for i in range(20)])
    with pytest.raises(ValueError, match=r"encoded=True.*\['good'\].*leave y_block out"):
        dls = loaders.from_df(df, text_col='text', label_col=['good'], valid_col='is_valid', y_block=MultiCategoryBlock(encoded=True, vocab=['good']), tok_tfm=BaseTokenizer(), bs=4, num_workers=0)
        transformer_classifier_learner(dls, **SMALL)
    assert TransformerDataLoaders.from_df(df, label_col=['good'], valid_col='is_valid', **FAST).c == 2

class TestMadeOnce:
    "Loaders that keep the numbers of their texts"
    def dls(self, n=40, **kw): return TransformerDataLoaders.from_df(frame(n), text_col='text', label_col='label', valid_col='is_valid', **{**FAST, **kw})

    @pytest.mark.parametrize('df,kw', [(frame(), {}), (frame(stars=[i/7 for i in range(20)]), dict(label_col='stars')), (
        frame(tags=['a;b' if i%3 else 'b' for i in range(20)]), dict(label_col='tags', label_delim=';'))], ids=['label', 'number', 'labels'])
    def test_same_batches(self, df, kw):
        "Kept texts come as fastai makes them, in the second epoch, too"
        kw = dict(dict(text_col='text', label_col='label', valid_col='is_valid', **FAST), **kw)
        kept,anew = (TransformerDataLoaders.from_df(df, **kw, keep=o, num_workers=0) for o in (True, False))
        for _ in range(2):
            for a,b in zip(kept.loaders, anew.loaders):
                set_seed(0); batches = list(a)
                set_seed(0)
                for (x,y),(x2,y2) in zip(batches, b, strict=True):
                    assert x.equal(x2) and y.equal(y2) and (type(x),type(y)) == (type(x2),type(y2)) and x.dtype == x2.dtype and y.dtype == y2.dtype
        assert kept.train.made and not anew.train.made

    def test_made_once(self, monkeypatch):
        "The second epoch makes nothing; new texts are not kept"
        dls = self.dls()
        list(dls.train), list(dls.valid)
        monkeypatch.setattr(type(dls.train_ds), '__getitem__', None)
        assert sum(len(y) for _,y in dls.train) == 32 and sum(len(y) for _,y in dls.valid) == 8
        monkeypatch.undo()
        assert not dls.test_dl(['a good film']).keep

    def test_written_into(self):
        "What a transform writes into a text is gone in the next epoch"
        dl = self.dls(bs=2).train.new(keep=True, after_item=Blank())
        for x,y in [b for _ in range(2) for b in dl]: assert not x.eq(text_vocab(dl).index('film')).any()
        assert all(dl.create_item(i)[0].equal(dl.dataset[i][0]) for i in dl.made)

    def test_when(self, monkeypatch):
        "Unless workers or anew are asked for, or there are very many texts"
        def has(**kw): dl = self.dls(**kw).train; return dl.keep,dl.fake_l.num_workers
        assert has() == has(num_workers=None) == has(keep=True) == (True,0)
        if sys.platform == 'linux': assert has(num_workers=1) == (False,1)
        assert has(keep=False, num_workers=0) == (False,0)
        monkeypatch.setattr('fastai_txf.text.batches._most_kept', 39)
        assert not has()[0] and has(keep=True) == (True,0)

    @pytest.mark.parametrize('lens', [[5], [0,3], [150,1,72,73], [71,72,144,145,0], [216]])
    @pytest.mark.parametrize('first', [True, False])
    def test_padding(self, lens, first):
        "As fastai's, a text at a time"
        items = [(TensorText(torch.arange(9, 9+n)), TensorCategory(n)) for n in lens]
        ours,theirs = (f(pad_idx=4, pad_first=first, seq_len=72)(items) for f in (PadTexts, Pad_Chunk))
        for (x,y),(x2,y2) in zip(ours, theirs, strict=True):
            assert x.equal(x2) and y.equal(y2) and (type(x),type(y)) == (type(x2),type(y2))

class Blank(ItemTransform):
    "Writes into the text"
    def encodes(self, o):
        o[0][o[0] > 8] = 1
        return o
