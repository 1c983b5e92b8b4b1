"What a fastai user does with a text learner, done with ours: predicting, showing, saving, freezing, and being told what is wrong"
import dataclasses, inspect, json, math, pickle, random, subprocess, sys, warnings
from copy import deepcopy
import numpy as np, pandas as pd, pytest, torch
from functools import partial
import torch.nn.functional as F
from sklearn.metrics import f1_score
from torch import nn
from fastai.text.all import (AccumMetric, AvgMetric, BaseLoss, BaseTokenizer, BCEWithLogitsLossFlat, Callback, CancelFitException, CancelTrainException, CategoryBlock,
                             ClassificationInterpretation, CrossEntropyLossFlat, CSVLogger, DataBlock, EarlyStoppingCallback, F1Score, FocalLoss, FocalLossFlat, F1ScoreMulti, GradientAccumulation, GradientClip,
                             GrandparentSplitter, L, L1LossFlat, LabelSmoothingCrossEntropyFlat, Learner, Metric, Module, MCDropoutCallback, MSELossFlat, PearsonCorrCoef, Perplexity, R2Score,
                             ReduceLROnPlateau, RegressionBlock, RMSProp, RocAuc, RocAucBinary, RocAucMulti, SaveModelCallback, SGD, TextBlock,
                             TextDataLoaders, ValueMetric, accuracy, accuracy_multi, get_text_files, load_learner, mae, no_random, parent_label, rmse, set_seed,
                             tokenize_folder, top_k_accuracy)
import fastai.text.learner as fastai_text, fastai_txf.learn.transfer as transfer, fastai_txf.text.pairs as pairs
from fastai_txf.text.special import pad_index, text_vocab, vocab_lists
from fastai_txf.text.labels import check_df
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.tokens import CharTokenizer
from fastai_txf.base.compat import parts_of
from fastai_txf.model.attention import record_attention, SelfAttention
from fastai_txf.model.layers import FeedForward, TransformerBlock
from fastai_txf.learn.transfer import remap_rows
from fastai_txf.learn.base import TransformerLearner
from fastai_txf.learn.factory import HIDDEN
from fastai_txf.train.losses import ChunkedLoss
from fastai_txf.train.optim import TorchOptimizer
from fastai_txf.train.rates import width_lr
from fastai_txf.train.step import StepLearner
from fastai_txf.learn.classifier import ENCODER_FIELDS, transformer_classifier_learner
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.model.windows import compact
from fastai_txf.model.config import fields_of, ROLES, TransformerConfig, UNUSED
from fastai_txf.model.models import TransformerClassifier, TransformerLM
from fixtures import *

factories = pytest.mark.parametrize('factory', [transformer_classifier_learner, transformer_lm_learner])
texts = ['a warm film', 'dull acting and a cold story with the music of it', '', 'zzzz qqqq', 'lovely']

@pytest.fixture(scope='module')
def trained(dls, tmp_path_factory):
    "A classifier that knows its task"
    learn = quiet(transformer_classifier_learner(dls, **SMALL, path=tmp_path_factory.mktemp('trained'), metrics=accuracy))
    learn.fit_one_cycle(3, 1e-2)
    return learn

# Options

@factories
def test_signature(factory):
    "Every field of the configuration and every argument of `Learner` shows, with its default"
    sig = inspect.signature(factory).parameters
    lm = factory is transformer_lm_learner
    hidden = {*HIDDEN['lm' if lm else 'classifier']}
    for f in dataclasses.fields(TransformerConfig):
        assert (f.name in sig) == (f.name not in hidden), f.name
        if f.name in sig and f.name != 'n_out': assert sig[f.name].default == f.default
    theirs = inspect.signature(Learner).parameters
    for k,p in theirs.items():
        if k not in ('dls','model'): assert sig[k].default == p.default
    assert {'dls','config','arch','block','pretrained','drop_mult'} <= sig.keys() and ('y_range' in sig) != lm
    assert not sig.keys() & {'kwargs','model'}

def test_roles_of_fields():
    "Every field has a role, and no role names a field that is none, or one twice"
    assert {*fields_of(*ROLES)} == {f.name for f in dataclasses.fields(TransformerConfig)}
    for names in map(str.split, ROLES.values()): assert len(names) == len({*names})

@factories
@pytest.mark.parametrize('wrong,near', [('n_haeds','n_heads'), ('metrcs','metrics'), ('d_modle','d_model'), ('pretraned',None), ('zzzz',None)])
def test_misspelt_option(request, factory, wrong, near):
    dls = request.getfixturevalue('dls_lm' if factory is transformer_lm_learner else 'dls')
    with pytest.raises(TypeError, match=repr(wrong)) as e: factory(dls, **{wrong:2})
    if near: assert f'did you mean {near!r}?' in str(e.value)

@factories
def test_first_misspelt_option(request, factory):
    "Of several the first is named, in every process"
    dls = request.getfixturevalue('dls_lm' if factory is transformer_lm_learner else 'dls')
    for wrong in (['n_haeds','metrcs','d_modle','n_lyers','postions'], ['postions','d_modle','n_lyers','metrcs','n_haeds']):
        with pytest.raises(TypeError, match=repr(wrong[0])): factory(dls, **dict.fromkeys(wrong, 2))

@both
@pytest.mark.parametrize('kw,words', [(dict(d_model=16, n_heads=3), ['16','n_heads=3']), (dict(config='gtp2'), ["'gtp2'","'gpt2'"]), (dict(positions='roatry'), ["'roatry'","'rotary'"]),
    (dict(norm='batch'), ["'batch'","'layer'"]), (dict(drop_mult=20), ['drop_mult=20','p=2.0 of','drop_mult < 10']), (dict(n_layers=0), ['n_layers=0']),
    (dict(drop_mult=-1), ['drop_mult=-1']), (dict(drop_mult=math.inf), ['drop_mult=inf']), (dict(drop_mult=math.nan), ['drop_mult=nan'])])
def test_wrong_value(make, kind, kw, words):
    with pytest.raises(ValueError) as e: make(kind, **kw)
    assert all(w in str(e.value) for w in words)

@pytest.mark.parametrize('mult', ['0.5',None,[1]])
def test_factor_that_is_no_number(make, mult):
    with pytest.raises(TypeError, match='drop_mult=.*give a number'): make(drop_mult=mult)

def test_wrong_pool_and_long(make):
    with pytest.raises(ValueError, match="pool='men'"): make(pool='men')
    with pytest.raises(ValueError, match="long='tial'"): make(long='tial')

def test_first_of_a_causal_model(make):
    "It has seen one token, the same in all texts; a language model of the preset `bert` begins a classifier so"
    lm = make('lm', config='bert')
    lm.model.vocab = text_vocab(lm.dls)
    for kw in (dict(pretrained=lm.model), dict(causal=True, pool='first')):
        with pytest.raises(ValueError, match="pool='last'"): make(**kw)
    assert make(causal=True, pool='last').model.config.causal and make(pool='first').model.config.pool=='first'

def test_the_other_kind_of_loaders(dls, dls_lm):
    with pytest.raises(ValueError, match='is_lm=True'): transformer_lm_learner(dls)
    with pytest.raises(ValueError, match='transformer_lm_learner'): transformer_classifier_learner(dls_lm)
    with pytest.raises(TypeError, match='str is no DataLoaders'): transformer_classifier_learner('texts.csv')

@both
def test_options_arrive(make, dls, dls_lm, kind, tmp_path):
    "Each where it belongs: in the configuration, the model, the learner"
    learn = make(kind, config='gpt2', n_layers=1, lr=0.5, wd=0.3, moms=(0.8,0.7,0.8), opt_func=RMSProp, model_dir='m', drop_mult=0.5)
    c,dls = learn.model.config, dls_lm if kind == 'lm' else dls
    assert (c.positions, c.n_layers, c.d_model, c.p, c.attn_p) == ('learned', 1, 16, 0.05, 0.05)
    assert {m.p for m in learn.model.modules() if isinstance(m, nn.Dropout)} <= {0., 0.05}
    assert c.vocab_sz == len(text_vocab(dls)) == len(learn.model.encoder.emb.weight) and c.pad_idx == pad_index(dls)
    assert (learn.lr, learn.wd, learn.moms, learn.opt_func, learn.model_dir, learn.path) == (0.5, 0.3, (0.8,0.7,0.8), RMSProp, 'm', tmp_path)
    assert not learn.train_bn and make(kind, train_bn=True).train_bn

@both
def test_a_whole_config(make, kind):
    "A `TransformerConfig` is taken as it is, but for what the data decide"
    mine = TransformerConfig(d_model=8, n_heads=2, n_layers=1, positions='alibi', max_len=30)
    c = make(kind, config=mine, d_model=8, n_layers=1).model.config
    for f in ('d_model','positions','max_len','p','ff'): assert getattr(c, f) == getattr(mine, f)

def test_lm_length(make, df):
    "An LM reads at least the loaders' sequences; learned positions that are too few say so"
    long = make_dls(df, is_lm=True, seq_len=700, bs=1)
    assert make('lm', dls=long).model.config.max_len == 700
    with pytest.raises(ValueError, match='16 tokens.*max_len=8'): make('lm', config='gpt2', max_len=8).fit(1)

def test_n_out_and_dropouts(make):
    assert make('clf').model.head.out_features == 2 and make('multi').model.head.out_features == 3 and make('reg').model.head.out_features == 1
    with pytest.raises(ValueError, match='n_out=5'): make('clf', n_out=5)
    assert all(m.p == 0 for m in make('lm', drop_mult=0).model.modules() if isinstance(m, nn.Dropout))

# One's own parts

class OwnBlock(Module):
    "A block of one's own: takes what it likes of the configuration"
    def __init__(self, d_model, p): self.lin,self.p,self.calls = nn.Linear(d_model, d_model),p,0
    def forward(self, x, mask=None, pos=None):
        self.calls += 1
        return x + self.lin(x).relu()

class OwnModel(Module):
    "A model of one's own, called with the configuration"
    def __init__(self, config):
        self.config,self.emb = config,nn.Embedding(config.vocab_sz, config.d_model)
        self.lin = nn.Linear(config.d_model, config.n_out)
    def forward(self, x): return self.lin(self.emb(x).mean(1))

class OwnLM(OwnModel):
    def __init__(self, config):
        super().__init__(config)
        self.lin = nn.Linear(config.d_model, config.vocab_sz)
    def forward(self, x): return self.lin(self.emb(x))

@both
def test_block(make, kind):
    "A class and a `partial` reach the model and train"
    learn = make(kind, block=OwnBlock)
    blocks = learn.model.encoder.blocks
    assert [type(b) for b in blocks] == [OwnBlock]*2 and blocks[0].p == 0.1
    before = weights(learn)
    learn.fit(1, 1e-2)
    assert blocks[1].calls and any('blocks.1.lin' in k for k in changed(learn, before))
    learn = make(kind, block=partial(TransformerBlock, d_ff=24, p=0.5))
    shapes = {p.shape for p in learn.model.encoder.blocks[0].ff.parameters()}
    assert any(24 in s for s in shapes) and not any(64 in s for s in shapes)
    learn.fit(1)

@pytest.mark.parametrize('kind,arch', [('clf',OwnModel), ('lm',OwnLM)])
def test_arch(make, kind, arch):
    "One's own model trains and predicts; without an encoder it is one group and shares none"
    learn = make(kind, arch=arch, d_model=12, metrics=accuracy)
    assert type(learn.model) is arch and learn.model.config.d_model == 12
    learn.fit_one_cycle(2, 1e-2)
    assert learn.recorder.values[-1][0] < learn.recorder.values[0][0] and len(learn.opt.param_lists) == 1
    assert learn.predict('a warm film')
    with pytest.raises(TypeError, match=f'{arch.__name__} has no `encoder`'): learn.save_encoder('enc')

class OwnClassifier(TransformerClassifier):
    "A subclass: twice the logits"
    def forward(self, x): return 2*super().forward(x)

def test_arch_with_encoder(make):
    learn = make(arch=OwnClassifier, block=OwnBlock)
    assert type(learn.model.encoder.blocks[0]) is OwnBlock
    learn.freeze()
    assert len(learn.opt.param_lists) == 4 and learn.opt.frozen_idx == 3

# Numbers that agree

def test_validate(trained, df):
    "The loss and metrics of the very predictions"
    preds,targs = trained.get_preds()
    loss,acc = trained.validate()
    assert loss == pytest.approx(-preds[range(16),targs].log().mean().item(), abs=1e-5)
    assert acc == pytest.approx((preds.argmax(1) == targs).float().mean().item())

def test_nothing_to_validate_on(make, df, tmp_path):
    "A learner from a file has no texts and says so; given some, it does what it did"
    for kind in ('clf','lm'):
        learn = make(kind, metrics=accuracy)
        want = learn.validate(dl=learn.dls.valid)
        assert learn.validate() == want and learn.validate(1, None, []) == want
        learn.export('l.pkl')
        loaded = quiet(load_learner(tmp_path/'l.pkl'))
        for f in (loaded.validate, loaded.get_preds, loaded.show_results, partial(loaded.validate, 0), partial(loaded.fit_one_cycle, 1), partial(loaded.fine_tune, 1)):
            with pytest.raises(ValueError, match='not one batch'): f()
        assert [*loaded.validate(dl=learn.dls.valid)] == pytest.approx([*want], abs=1e-6)
        learn.show_results(1, None, 2, False)                                # by place, as fastai's
    learn = make(metrics=accuracy)
    with pytest.raises(ValueError, match='no targets .test_dl keeps them with_labels=True'): learn.validate(dl=learn.dls.test_dl(df.text[:9].tolist()))

def test_validate_lm(make):
    loss,acc,ppl = make('lm', metrics=[accuracy, Perplexity()]).validate()
    assert ppl == pytest.approx(np.exp(loss), rel=1e-4) and 0 <= acc < 0.3

def test_get_preds(trained, df):
    "In the order of the items, the same as `predict`, whatever shares the batch"
    valid = df[df.is_valid]
    preds,targs,decoded,losses = trained.get_preds(with_decoded=True, with_loss=True)
    vocab = list(trained.dls.vocab[1])
    assert [vocab[t] for t in targs] == valid.label.tolist()
    labels,idxs,probs = trained.predict(valid)
    close(preds, probs); assert decoded.equal(idxs) and losses.shape == (16,)
    for i in (0,7,15): close(trained.predict(valid.text.iloc[i])[2], preds[i])
    close(trained.get_preds(dl=trained.dls.test_dl(valid.text.tolist(), num_workers=0, bs=3))[0], preds)
    train = trained.get_preds(ds_idx=0)
    assert [vocab[t] for t in train[1]] == df.label[~df.is_valid].tolist()

# Predictions

def test_predict(trained, df):
    "One text as fastai returns it; a list, a series and a data frame at once"
    label,idx,probs = trained.predict('a warm lovely film')
    assert label == 'pos' and idx == 1 and probs.shape == (2,) and probs[1] > 0.8
    assert trained.predict('dull cold story')[0] == 'neg'
    many = trained.predict(texts)
    assert [len(o) for o in many] == [5,5,5] and many[2].shape == (5,2)
    odd = pd.Series(texts, index=[9,9,3,'a',-1])
    frame = pd.DataFrame(dict(review=texts, text='dull'), index=odd.index)
    for other in (tuple(texts), odd, np.array(texts), frame.rename(columns={'text':'old','review':'text'})):
        res = trained.predict(other)
        assert res[0] == many[0]; close(res[2], many[2])
    close(trained.predict(frame, text_col='review')[2], many[2])
    close(trained.predict(texts, bs=2)[2], many[2])
    for t,l,p in zip(texts, many[0], many[2]):
        one = trained.predict(t)
        assert one[0] == l; close(one[2], p)

def test_predict_with_input(trained, dls):
    "As fastai's text learner gives it: the text as the model reads it comes first"
    theirs = quiet(fastai_text.text_classifier_learner(dls, fastai_text.AWD_LSTM, pretrained=False))
    for t in texts[:2] + ['a WARM film zzzz']: assert trained.predict(t, with_input=True)[0] == theirs.predict(t, with_input=True)[0]
    shown,*res = trained.predict(texts, with_input=True)
    for i,t in enumerate(texts):
        one = trained.predict(t, with_input=True)
        assert one[0] == shown[i] and one[1] == res[0][i] == trained.predict(t)[0]
    assert len(trained.predict(texts[0])) == 3

@pytest.mark.parametrize('item,error,words', [([], ValueError, 'no text'), (pd.DataFrame(dict(text=[])), ValueError, 'no rows'), (['a', None], TypeError, 'number 1 is None'),
    (pd.DataFrame(dict(text=['a', np.nan])), ValueError, "'text' has no text .nan. in 1 of 2 rows"), (pd.DataFrame(dict(body=['a'])), ValueError, "called 'text'.*'body'"), (['a', 3], TypeError, '3: a int')])
def test_predict_refuses(trained, item, error, words):
    with pytest.raises(error, match=words): trained.predict(item)

class Listener(Callback):
    "Notes what it hears; `after_pred` is an attribute of the instance"
    def __init__(self): self.heard,self.after_pred = [],lambda: self.heard.append('after_pred')
    def before_fit(self): self.heard.append('before_fit')
    def before_batch(self):
        self.heard.append('before_batch')
        if len(self.heard) > 5: self.run = False
    def after_batch(self): self.heard.append('after_batch')

class Late(Listener):
    "Comes after `Listener`, and listens to the end"
    order = 5
    def after_cancel_fit(self): self.heard.append('after_cancel_fit')
    def after_batch(self): raise CancelFitException()

class All(Callback):
    "Hears all that happens"
    def __init__(self): self.heard = []
    def __call__(self, event_name): self.heard.append(event_name)

def test_events(make, monkeypatch):
    "Callbacks hear what fastai's learner tells them, and run again in the next fit"
    def heard(**kw):
        cbs = [Listener(), Late(), All()]
        learn = make('clf', cbs=cbs, **kw)
        for _ in range(2): learn.fit(1)
        learn.remove_cb(cbs[1]); learn.fit(1)
        return [cb.heard for cb in cbs], [cb.run for cb in cbs]
    ours = heard()
    assert set(ours[0][2]) >= {'after_pred','before_step','after_fit'}
    monkeypatch.delattr(StepLearner, '__call__')
    assert ours == heard() and ours[0][0].count('before_fit') == 3 and 'after_cancel_fit' in ours[0][1] and ours[1] == [True]*3
    with pytest.raises(Exception, match='missing before_lunch'): make('clf')('before_lunch')

@pytest.mark.parametrize('col', ['body',['title','body'],0])
@pytest.mark.parametrize('cls', [TransformerDataLoaders,TextDataLoaders])
def test_predict_columns(make, df, cls, col):
    "A frame is read by the columns of training, all of them, and predicted as validation is"
    df = pd.DataFrame(dict(body=df.text, title='On ' + df.text.str.split().str[0], label=df.label, is_valid=df.is_valid))
    learn = make(dls=cls.from_df(df, text_col=col, label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), num_workers=0, bs=8))
    new = df[df.is_valid][['title','body'] if isinstance(col, list) else ['body']].reset_index(drop=True)
    close(learn.predict(new)[2], learn.get_preds()[0])

def test_predict_leaves_the_learner_alone(make):
    "The record and the callbacks"
    learn = make()
    learn.fit(1)
    rows,losses,cbs = list(learn.recorder.values), list(learn.recorder.losses), list(learn.cbs)
    learn.predict(texts); learn.predict('a')
    assert learn.recorder.values == rows and learn.recorder.losses == losses and len(losses) == 8
    assert list(learn.cbs) == cbs and learn.recorder.metric_names[-1] == 'time'

def test_predict_needs_no_workers(make, df, monkeypatch):
    learn = make(dls=make_dls(df, num_workers=2))
    assert learn.dls.valid.fake_l.num_workers == 2
    monkeypatch.setattr('torch.utils.data.dataloader._MultiProcessingDataLoaderIter.__init__', lambda *a, **k: pytest.fail('started workers'))
    assert learn.predict(texts)[2].shape == (5,2)

@both
def test_predict_beside_callbacks(make, kind, tmp_path, capsys):
    "Callbacks that stay on the learner do not get in the way, nor does a bar"
    cbs = [SaveModelCallback(), EarlyStoppingCallback(patience=3), CSVLogger(), GradientClip()]
    learn = make(kind, cbs=cbs)
    learn.fit(1)
    rows,file = list(learn.recorder.values), (tmp_path/'history.csv').read_text()
    capsys.readouterr()
    for _ in range(2): assert learn.predict('a warm film')
    assert learn.recorder.values == rows and (tmp_path/'history.csv').read_text() == file and capsys.readouterr().out == ''
    learn.fit(1)

def test_predict_lm(make):
    "Text, begun as given, of real words, the same for the same seed; beyond `max_len`, too"
    lm = make('lm', max_len=20)
    lm.fit(1, 1e-2)
    out = lm.predict('A warm film', n_words=20, seed=1)
    assert out.startswith('A warm film') and 'xx' not in out and out == lm.predict('A warm film', n_words=20, seed=1)
    assert lm.predict('a', n_tokens=8, temperature=0) == lm.predict('a', n_tokens=8, temperature=0)
    assert lm.predict('warm '*100, n_tokens=3).startswith('warm warm')
    assert len(lm.recorder.values) == 1

def test_many_labels(make, df):
    learn = make('multi', metrics=partial(accuracy_multi, thresh=0.5))
    learn.fit_one_cycle(4, 1e-2)
    assert learn.recorder.values[-1][1] < learn.recorder.values[0][1]*0.8
    tags,on,probs = learn.predict('music music music')
    assert isinstance(tags, (list,L)) and on.dtype == torch.bool and probs.shape == (3,) and 0 <= probs.min() and probs.max() <= 1
    vocab = list(learn.dls.vocab[1])
    assert list(tags) == [v for v,o in zip(vocab, on) if o]
    many = learn.predict(df.text[:6])
    assert [sorted(t) for t in many[0]] == [sorted(v for v,o in zip(vocab, row) if o) for row in many[1]] and many[2].shape == (6,3)
    close(learn.predict(df.text[2])[2], many[2][2])

@pytest.mark.parametrize('y_range', [3,(1,),(0,1,2),('a','b'),(1,0),(2,2),(float('nan'),1)])
def test_bad_y_range(make, y_range):
    with pytest.raises(ValueError, match='y_range=.*: (two numbers are needed|the first must be below)'): make('reg', y_range=y_range)

@pytest.mark.parametrize('bs', [0,-2,2.5])
def test_bad_bs(trained, bs):
    with pytest.raises(ValueError, match=f'{bs=} is out of range: .* texts in a batch'): trained.predict(['warm fine','dull'], bs=bs)

def test_regression(make, df):
    "Values stay in `y_range`, however sure the model is; without it they need not"
    learn = make('reg', y_range=(0.1,0.9))
    learn.fit_one_cycle(4, 1e-2)
    assert learn.recorder.values[-1][1] < learn.recorder.values[0][1] and learn.recorder.values[-1][1] < 0.05
    high,low = (learn.predict(t)[2].item() for t in ('warm clever lovely fine', 'dull cold weak poor'))
    assert high > 0.6 and low < 0.4
    with torch.no_grad(): learn.model.head.weight *= 1000
    vals = learn.predict(df.text)[2]
    assert vals.shape == (80,1) and 0.0999 < vals.min() < 0.2 and 0.8 < vals.max() < 0.9001
    free = make('reg')
    with torch.no_grad(): free.model.head.weight.mul_(1000)
    assert free.predict(df.text)[2].abs().max() > 1

each_number_loss = pytest.mark.parametrize('cls,name', [(nn.MSELoss,'mse_loss'), (nn.L1Loss,'l1_loss'), (nn.SmoothL1Loss,'smooth_l1_loss'),
                                                        (nn.HuberLoss,'huber_loss')])

@each_number_loss
def test_losses_that_broadcast(make, df, cls, name):
    "torch's losses of numbers compare (bs, 1) with (bs,), each text with all: refused where there is one number, and the remedy works"
    func = getattr(F, name)
    for loss in (cls(), func, partial(func, reduction='mean'), partial(partial(func), reduction='mean'), BaseLoss(cls)):
        with pytest.raises(ValueError, match=r'loss_func=.*each text with the numbers of all texts.*take loss_func=') as e: make('reg', loss_func=loss)
    given = eval(str(e.value).split('take loss_func=')[1].split(', which')[0])
    learn = make('reg', loss_func=given)
    preds,targs = learn.get_preds()
    close(learn.validate()[0], cls()(preds[:,0], targs).item())
    two = numbers(df, ('score','more'), more=df.score/2)
    for loss in (cls(), func, partial(func, reduction='mean'), given): make('reg', dls=two, loss_func=loss)

_unsuited = dict(clf=(accuracy_multi, F1ScoreMulti(), mae, R2Score(), top_k_accuracy, RocAuc()), multi=(accuracy, F1Score()), reg=(F1Score(), RocAucBinary()))

@pytest.mark.parametrize('kind,metric', [(k,m) for k,o in _unsuited.items() for m in o], ids=lambda o: getattr(o, 'name', None))
def test_metric_that_does_not_suit(make, kind, metric):
    "Named before the first step, with its own words and a remedy"
    learn,words = make(kind), dict(clf='accuracy, F1Score', multi='accuracy_multi or F1ScoreMulti', reg='mae, rmse or R2Score')[kind]
    learn.metrics = metric
    before = weights(learn)
    with pytest.raises(ValueError, match=rf'{learn.metrics[0].name} does not suit these targets.*Error.*take {words}'): learn.fit(1)
    assert not changed(learn, before)

_suited = dict(clf=(partial(top_k_accuracy, k=2), F1Score(), RocAucBinary(), AccumMetric(f1_score, dim_argmax=-1, to_np=True, invert_arg=True)),
               multi=(partial(accuracy_multi, thresh=0.2), F1ScoreMulti(), RocAucMulti()), reg=(mae, rmse, R2Score(), PearsonCorrCoef()))

@pytest.mark.parametrize('kind', _suited)
def test_metrics_that_suit(make, kind):
    "They are tried without a trace: of random numbers, or in the metrics"
    class Looks(Metric):
        name = 'looks'
        def reset(self): self.n = 0
        def accumulate(self, learn): self.n += len(learn.xb[0])
        @property
        def value(self): return self.n
    learn = make(kind, metrics=[*_suited[kind], Looks(), Perplexity(), AvgMetric(lambda *_: torch.zeros(1)), ValueMetric(lambda: 1., 'one')])
    state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    learn.check_fit([])
    assert state[0].equal(torch.get_rng_state()) and (state[1] == np.random.get_state()[1]).all() and state[2] == random.getstate()
    learn.fit(1)
    assert len(learn.recorder.values[0]) == 2 + len(learn.metrics)

def test_metrics_that_are_not_judged(make, dls_multi):
    "Weights for each text, a function of one's own, outputs that a callback changes"
    class First(Callback):
        def after_pred(self): self.learn.pred = self.pred[:,:1]
    def own(pred, targ): raise KeyError('own')
    make('clf', metrics=[F1Score(sample_weight=[1.]*9), own]).check_fit([])
    learn = make('multi', metrics=accuracy)
    with pytest.raises(ValueError, match='accuracy_multi'): learn.check_fit([])
    learn.check_fit([First()])
    learn.check_fit([Callback(after_pred=First.after_pred)])

@pytest.mark.parametrize('loaders', [TextDataLoaders,TransformerDataLoaders])
def test_loader_without_marks(make, df, loaders):
    "fastai's `test_dl` of several columns reads one, and marks none: refused; ours is right, whatever the tokenizer makes of marks"
    two = df.assign(title=df.tags)
    def made(**kw): return make(dls=loaders.from_df(two, text_col=['title','text'], label_col='label', valid_col='is_valid', bs=8, num_workers=0, **kw))
    learn = made(tok_tfm=BaseTokenizer())
    for f in (learn.validate, learn.get_preds): f(dl=learn.dls.valid)
    dl = learn.dls.test_dl(two[:9], with_labels=True)
    for f in (learn.validate, learn.get_preds, learn.show_results):
        if loaders is TransformerDataLoaders: f(dl=dl); continue
        with pytest.raises(ValueError, match=r"training had its texts in \['title', 'text'\].*TransformerDataLoaders.*predict"): f(dl=dl)
    if loaders is TransformerDataLoaders:
        for kw in (dict(tok_tfm=CharTokenizer()), dict(tok_tfm=BaseTokenizer(), backwards=True), dict(tok_tfm=BaseTokenizer(), rules=[])):
            learn = made(**kw)
            learn.get_preds(dl=learn.dls.test_dl(two[:9]))

@pytest.mark.parametrize('given', [False,True])
@pytest.mark.parametrize('cls', [SaveModelCallback, EarlyStoppingCallback, ReduceLROnPlateau])
def test_nothing_to_watch(make, df, cls, given):
    "No validation text: a callback that compares its loss is named before the first epoch, one that has enough is not"
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_pct=0, bs=8, tok_tfm=BaseTokenizer())
    with pytest.raises(ValueError, match=f'{cls.__name__} watches valid_loss.*no validation texts.*valid_pct'):
        if given: make(dls=dls).fit(1, cbs=cls)
        else: make(dls=dls, cbs=cls()).fit(1)
    make(dls=dls).fit(1, cbs=cls(monitor='train_loss'))
    make(dls=dls).fit(1, cbs=SaveModelCallback(every_epoch=True))

@pytest.mark.parametrize('factor', [100.,-1.])
def test_loss_of_shares(make, df, factor):
    "It falls for ever on numbers outside of 0 to 1"
    with pytest.raises(ValueError, match=r'BCEWithLogitsLossFlat is for numbers from 0 to 1.*reach from -?[\d.]+ to .*MSELossFlat.*scale them'):
        make('reg', dls=numbers(df, score=df.score*factor), loss_func=BCEWithLogitsLossFlat())
    for dls in (None, numbers(df, ('score','more'), more=df.score/2)): make('reg', dls=dls, loss_func=BCEWithLogitsLossFlat())

def variance_left(learn, lr=1e-2, n=4):
    "The share of the variance of each number that is left after training, and the outputs"
    learn.fit_one_cycle(n, lr)
    preds,targs = learn.get_preds()
    targs = targs.view_as(preds)
    return ((preds-targs)**2).mean(0)/targs.var(0, correction=0), preds

def numbers(df, cols=('score',), **columns): return make_dls(df.assign(**columns), label_col=[*cols], y_block=RegressionBlock())

@pytest.mark.parametrize('config', [None,'default'])
@pytest.mark.parametrize('loss', [None,MSELossFlat(),L1LossFlat()])
def test_numbers_in_any_unit(make, df, config, loss):
    "A training run is the same in any unit: prices of a million, shares of a thousandth; outputs and loss stay in the unit"
    def left(factor, shift=0):
        set_seed(0)
        learn = make('reg', dls=numbers(df, score=df.score*factor + shift), config=config, loss_func=loss)
        res,preds = variance_left(learn)
        want = nn.functional.l1_loss if isinstance(getattr(loss, 'func', None), nn.L1Loss) else nn.functional.mse_loss
        close(learn.validate()[0], want(preds, learn.get_preds()[1].view_as(preds)).item(), 1e-4)
        return res, (preds-shift)/factor
    (one,out),(price,prices),(share,shares) = left(1), left(1e6, 3e6), left(1e-3)
    close(price, one, 2e-2); close(prices, out, 2e-2)
    close(share, one, 2e-2); close(shares, out, 2e-2)
    assert one.item() < 0.8

@pytest.mark.parametrize('loaders', [TextDataLoaders, TransformerDataLoaders])
@pytest.mark.parametrize('offset,spread,warns', [(1.7e9,60,True), (2.**40,60,True), (-1.7e9,60,True), (1e5,10,False), (1.7e9,1e5,False), (0,1e-9,False)], ids=str)
def test_numbers_that_float32_does_not_tell_apart(df, loaders, offset, spread, warns):
    "A large number is added to all targets: a warning with the remedy, where they lie within a few steps of float32"
    df = df.assign(ts=offset + np.linspace(0, spread, len(df)), score=df.score)
    dls = loaders.from_df(df, text_col='text', label_col=['score','ts'], y_block=RegressionBlock(), valid_col='is_valid', tok_tfm=BaseTokenizer(), num_workers=0, bs=8)
    for loss in (None, L1LossFlat()):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter('always')
            transformer_classifier_learner(dls, **SMALL, loss_func=loss)
        said = [str(w.message) for w in seen if 'float32' in str(w.message)]
        assert len(said) == warns
        if warns: assert f'around {offset:g} have a spread of' in said[0] and 'subtract their mean' in said[0]

def test_columns_of_any_size(make, df):
    "A small number beside a large one is learned as it is beside one of its size"
    def left(factor):
        set_seed(0)
        return variance_left(make('reg', dls=numbers(df, ('score','more'), more=(1-df.score)*factor)), n=6)[0]
    even,uneven = left(1), left(1e6)
    close(uneven, even, 2e-2)
    assert (uneven < 0.6).all()

def test_a_given_loss_keeps_its_weights(make, df):
    "A loss of one's own is divided by one number: the columns count as it says, and what is shown is the loss itself"
    seen = []
    class Look(Callback):
        order = 0
        def after_loss(self):
            if self.training: seen.append((self.learn.loss_grad/self.learn.loss).item())
    learn = make('reg', dls=numbers(df, ('score','more'), more=df.score*1e3), loss_func=MSELossFlat(), cbs=Look())
    learn.fit(1, 1e-3)
    spread = learn.model.range.spread
    close(spread[1]/spread[0], torch.tensor(1e3), 1e-3)
    close(torch.tensor(seen), torch.full((len(seen),), 1/spread.square().mean().item()), 1e-4)

def test_weights_from_before_the_spread(make, df):
    "Weights without a spread mean what they meant; a plain model takes over that of a learner; other parts alone leave it"
    learn = make('reg', dls=numbers(df, score=df.score*1e6))
    x,_ = learn.dls.one_batch()
    state = learn.model.eval().state_dict()
    assert learn.model.range.spread > 1e5
    plain = TransformerClassifier(learn.model.config).to(x.device)
    plain.load_state_dict(state)
    close(plain.eval()(x), learn.model(x))
    old = {k:v.clone() for k,v in state.items() if not k.startswith('range.')}
    learn.model.load_state_dict({k:v for k,v in old.items() if not k.startswith('head.')}, strict=False)
    assert learn.model.range.spread > 1e5
    torch.save(old, learn.path/'old.pth')
    learn.load(learn.path/'old')
    close(learn.model.eval()(x), plain.range.inverse(plain(x)), 1e-4)
    assert learn.model.range.spread == 1 and learn.model.range.mean == 0

class Shifted(FeedForward):
    "Of the same shapes as the library's, with other answers"
    def forward(self, x): return super().forward(x + torch.nn.functional.pad(x[:,:-1], (0,0,1,0)))

@both
def test_weights_of_other_parts(make, kind):
    "Weights of a block of one's own are not those of the library's; files that do not name the parts load as ever"
    own,relu = (partial(TransformerBlock, ff=o) for o in (Shifted, partial(FeedForward, act=torch.nn.ReLU)))
    file = make(kind, block=own).save('parts')
    make(kind, block=own, p=0.3).load('parts')
    for other in (dict(), dict(block=relu)):
        with pytest.raises(ValueError, match=r"parts.pth holds the weights of a model with encoder.blocks.0.ff.fn='Shifted' \(here 'FeedForward'\)"): make(kind, **other).load('parts')
    saved = torch.load(file, weights_only=False)
    kept = (saved['model'] if 'model' in saved else saved)._metadata['']
    about = json.loads(kept['answers depend on'])
    del about['parts']
    kept['answers depend on'] = json.dumps(about)
    torch.save(saved, file)
    make(kind).load('parts')

def test_head_of_another_shape_begins_at_the_mean(make, df):
    "A classifier to start from gives its encoder; a head that does not fit, and one that does, are measured and kept"
    clf,dls = make(), numbers(df, score=df.score*1e6)
    clf.model.vocab = text_vocab(clf.dls)
    learn = make('reg', dls=dls, pretrained=clf.model)
    assert learn.model.range.mean > 1e5
    learn.model.head.bias.data.fill_(7)
    learn.model.vocab = text_vocab(dls)
    again = make('reg', dls=dls, pretrained=learn.model)
    assert again.model.head.bias.item() == 7 and again.model.range.spread.equal(learn.model.range.spread)

@pytest.mark.parametrize('kw', [{}, dict(pool='max_logits'), dict(config='auto')])
def test_chunked_loss_is_for_language_models(make, kw):
    "A classifier pools before its head: the promised TypeError, at the first batch"
    with pytest.raises(TypeError, match='TransformerClassifier is not that of its head'): make(**kw).fit(1, cbs=ChunkedLoss())

@pytest.mark.parametrize('change,match', [(dict(label='new'), r"label 'new' of column 'label' is none of \['neg', 'pos'\].*4 of 4 rows \(index 0, 1, 2, 3\)"),
                                          (dict(label=['pos',None,'neg','pos']), r"column 'label' has no label .* in 1 of 4 rows \(index 1\)"),
                                          (dict(label=['pos','neg','old','pos']), r"label 'old' .*: 1 of 4 rows \(index 2\)")])
def test_unknown_labels_of_a_test_set(df, change, match):
    "What is no label of training is named at once, not by a worker"
    own = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', bs=8)
    with pytest.raises(ValueError, match=match): own.test_dl(df[:4].assign(**change), with_labels=True)
    assert len(own.test_dl(df[:4], with_labels=True).dataset) == 4

def test_unknown_labels_of_other_targets(df):
    "Several labels, and numbers that are missing"
    own = partial(TransformerDataLoaders.from_df, text_col='text', valid_col='is_valid', bs=8)
    several = own(df, label_col='tags', label_delim=';')
    with pytest.raises(ValueError, match=r"label 'odd' of column 'tags' is none of .* 1 of 4 rows \(index 2\)"):
        several.test_dl(df[:4].assign(tags=['',df.tags[1],'odd;odd',df.tags[3]]), with_labels=True)
    several.test_dl(df[:4], with_labels=True)
    with pytest.raises(ValueError, match=r"column 'score' has no label .*index 3"):
        own(df, label_col='score').test_dl(df[:4].assign(score=[0.1,0.2,0.3,None]), with_labels=True)

# Tables and plots

@both
def test_predictions_leave_the_record(make, kind):
    "What a fit has recorded is there after predictions, as `plot_loss` and `SaveModelCallback` need it"
    learn = make(kind, metrics=accuracy)
    learn.fit(2, 1e-3)
    def record(): return [[*map(float, o)] for o in learn.recorder.values], len(learn.recorder.losses), [*learn.recorder.metric_names]
    before = record()
    learn.get_preds()
    learn.show_results(max_n=2)
    assert record() == before and len(before[0]) == 2 and len(before[0][0]) == 3
    class Fails(Callback):
        def before_batch(self): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): learn.get_preds(cbs=Fails())
    assert record() == before
    learn.validate()
    assert len(learn.recorder.values) == 1


def test_shown_texts_are_not_measured(make, tables):
    "A metric that needs more than the few texts of a table is left out of it, and is there again"
    class Fussy(AvgMetric):
        def accumulate(self, learn): raise ValueError('this metric needs all texts')
    learn = make(metrics=Fussy(accuracy))
    learn.show_results(max_n=2)
    learn.get_preds(with_loss=True)                                    # as top losses do
    assert len(learn.metrics) == 1
    with pytest.raises(ValueError, match='needs all texts'): learn.validate()

@pytest.fixture
def tables(monkeypatch):
    "The tables that were displayed"
    seen = []
    monkeypatch.setattr(pairs, 'IN_NOTEBOOK', True)
    for m in (fastai_text, pairs): monkeypatch.setattr(m, 'display_df', seen.append)
    return seen

@pytest.mark.parametrize('kind', ['clf','multi','reg','lm'])
def test_show_results(make, tables, df, kind):
    "A table of texts, targets and predictions"
    learn = make(kind)
    learn.show_results(max_n=4, shuffle=False)
    table, = tables
    assert len(table) == 4 and table.columns.tolist() == (['input','target','pred'] if kind == 'lm' else ['text','target','prediction'])
    if kind == 'lm': assert all(t.split()[1:5] == u.split()[:4] for t,u in zip(table.input, table.target)); return
    own = df[df.is_valid].set_index('text')
    first = table.iloc[0]
    row = own.loc[first.text.replace('xxbos ', '')]
    assert str(first.target) == str(dict(clf=row.label, multi=';'.join(sorted(row.tags.split(';'))), reg=row.score)[kind]) or kind == 'reg' and float(first.target) == pytest.approx(row.score)
    if kind == 'clf': assert set(table.prediction) <= {'pos','neg'}

@pytest.mark.parametrize('given', [False,True])
@pytest.mark.parametrize('kind', ['clf','multi','reg'])
def test_show_results_shuffled(make, tables, kind, given):
    "At random the texts differ from call to call, otherwise they are the first; a fit that follows is none the wiser"
    learn = make(kind)
    learn.fit(1, 1e-3)
    values,dl = learn.recorder.values, learn.dls.valid if given else None
    own = [learn.codec.decode(o[0]) for o in learn.dls.valid_ds]
    for shuffle in (False,True,True): learn.show_results(dl=dl, max_n=5, shuffle=shuffle)
    first,*drawn = ([t.replace('xxbos ', '') for t in o.text] for o in tables)
    assert first == own[:5] and drawn[0] != drawn[1] and all(len(set(o)) == 5 and set(o) <= {*own} for o in drawn)
    assert learn.recorder.values is values and learn.recorder.run

def test_show_results_shuffled_streams(make, tables):
    "The rows of a language model's first batch, or of texts in another order"
    learn = make('lm')
    for shuffle in (False,False,True): learn.show_results(max_n=3, shuffle=shuffle)
    a,b,c = (o.input.tolist() for o in tables)
    assert a == b != c

@pytest.mark.parametrize('kind', ['clf','lm'])
@pytest.mark.parametrize('kw', [dict(max_n=0), dict(max_n=-1), dict(trunc_at=0)])
def test_show_results_of_nothing(make, kind, kw):
    (k,v), = kw.items()
    with pytest.raises(ValueError, match=f'{k}={v} is out of range: .*1 or more'): make(kind).show_results(**kw)

def test_show_results_is_printed(trained, capsys):
    "Outside a notebook the table is text"
    trained.show_results(max_n=2, trunc_at=5)
    assert 'prediction' in capsys.readouterr().out

def test_interpretation(trained, tables, df):
    "The confusion matrix counts every validation text, and the worst are shown"
    interp = ClassificationInterpretation.from_learner(trained)
    cm = interp.confusion_matrix()
    assert cm.sum() == 16 and cm.sum(1).tolist() == [df[df.is_valid].label.eq(l).sum() for l in ('neg','pos')]
    interp.plot_confusion_matrix()
    losses,idxs = interp.top_losses(4)
    assert losses.tolist() == sorted(losses.tolist(), reverse=True)
    interp.plot_top_losses(4)
    table = tables[-1]
    assert len(table) == 4 and table.columns.tolist() == ['input','target','predicted','probability','loss']
    worst = df[df.is_valid].iloc[idxs.tolist()]
    assert table.target.tolist() == worst.label.tolist()
    assert [t.removeprefix('xxbos ') for t in table.input] == worst.text.tolist()
    assert table.loss.astype(float).tolist() == pytest.approx(losses.tolist(), abs=1e-4)

def test_interpretation_of_texts(trained, tables, df):
    "Each text beside what is its own, in several batches, too; other learners have fastai's"
    interp,valid = ClassificationInterpretation.from_learner(trained), df[df.is_valid].reset_index()
    xs,preds,targs,decoded,losses = interp[[3,1,*range(4, 16)]]
    assert [trained.codec.decode(x) for x in xs] == valid.text.iloc[[3,1,*range(4, 16)]].tolist() and len({len(x) for x in xs}) == 1
    close(preds, trained.get_preds()[0][[3,1,*range(4, 16)]])
    assert decoded.equal(preds.argmax(1))
    assert losses.tolist() == pytest.approx((-preds.log()[range(14),targs]).tolist(), abs=1e-4)
    interp.plot_top_losses(16)
    assert sorted(tables[-1].input) == sorted('xxbos ' + valid.text)
    one = interp[3]
    assert one[0].shape[0] == 1 and one[1].allclose(preds[:1], atol=1e-5)

@both
def test_summary(make, kind, capsys):
    "Counts every parameter, and the frozen ones"
    learn = make(kind, **(dict(tie=False) if kind == 'lm' else {})) # fastai counts a tied tensor once for each layer
    learn.freeze()
    text = str(learn.summary())
    total = sum(p.numel() for p in learn.model.parameters())
    train = sum(p.numel() for p in learn.model.parameters() if p.requires_grad)
    assert f'Total trainable params: {train:,}' in text and 0 < train < total
    assert type(learn.model).__name__ in text

# Files

@both
def test_save_and_load(make, kind):
    "Weights and optimizer"
    learn,other = make(kind), make(kind)
    learn.fit(1, 1e-2)
    learn.save('stage'); other.create_opt(); other.load('stage')
    assert not changed(other, weights(learn))
    def means(o):
        state = o.opt.state_dict()['state']
        return [p['exp_avg' if 'exp_avg' in p else 'momentum_buffer'].cpu() for p in state.values()] if isinstance(state, dict) else [p['grad_avg'].cpu() for p in state]
    a,b = means(learn),means(other)
    assert len(a) == len(b) > 0 and all(map(torch.equal, a, b))
    before = weights(learn)
    learn.fit(1, 1e-2); learn.load('stage')
    assert not changed(learn, before)

_fresh = '''
import sys, torch, warnings
from pathlib import Path
from fastai.text.all import load_learner
assert not any(m.startswith('fastai_txf') for m in sys.modules)
path,res = Path(sys.argv[1]), {}
for kind in ('clf','multi','reg','own','bf16'): res[kind] = load_learner(path/f'{kind}.pkl').predict(['a warm film', '', 'dull'])[2]
res['one'] = load_learner(path/'clf.pkl').predict('a warm film')
res['lm'] = load_learner(path/'lm.pkl').predict('a warm', n_tokens=12, temperature=0)
torch.save(res, path/'res.pth')
'''

def test_export_to_a_fresh_process(make, tmp_path):
    "`load_learner` alone, in another process, gives the same answers"
    learns = dict(clf=make(), multi=make('multi'), reg=make('reg', y_range=(0,1)), own=make(block=partial(TransformerBlock, d_ff=24)), bf16=make().to_bf16(), lm=make('lm'))
    for k in ('clf','lm','bf16'): learns[k].fit(1, 1e-2)
    for k,learn in learns.items(): learn.export(f'{k}.pkl')
    subprocess.run([sys.executable, '-W', 'ignore', '-c', _fresh, str(tmp_path)], check=True)
    res = torch.load(tmp_path/'res.pth', weights_only=False)
    for k in ('clf','multi','reg','own','bf16'): close(res[k], learns[k].predict(['a warm film', '', 'dull'])[2], 1e-2 if k == 'bf16' else 1e-5)
    label,_,probs = learns['clf'].predict('a warm film')
    assert res['one'][0] == label; close(res['one'][2], probs)
    assert res['lm'] == learns['lm'].predict('a warm', n_tokens=12, temperature=0)

@both
def test_export_leaves_the_learner(make, kind, tmp_path):
    "It trains on, and the loaded one predicts in this process"
    learn = make(kind)
    learn.fit(1); learn.export('a.pkl'); learn.fit(1)
    assert load_learner(tmp_path/'a.pkl').predict('a warm film')

# Encoders

def encode(learn, ids): return learn.model.eval().encoder(ids.to(next(learn.model.parameters()).device)).detach().cpu()

def test_encoder_same_vocabulary(make, capsys):
    "From one learner to another, and frozen where it is given as `pretrained`"
    a,b = make(), make()
    file = a.save_encoder('enc')
    ids = torch.randint(2, 20, (3,9))
    assert b.load_encoder('enc') is b and file.name == 'enc.pth'
    close(encode(a, ids), encode(b, ids), 0)
    n = len(text_vocab(a.dls))
    assert f'{n} of {n} tokens found' in capsys.readouterr().out
    c = make(pretrained=file)
    close(encode(a, ids), encode(c, ids), 0)
    before = weights(c)
    c.fit(1, 1e-2)
    assert changed(c, before) == {'head.weight','head.bias','encoder.norm.weight','encoder.norm.bias'} # the last group

@pytest.mark.parametrize('tie', [True,False])
def test_encoder_other_vocabulary(make, df, tie, capsys):
    "Shared tokens keep their rows exactly, the others start from the mean, and the count is printed; tied weights stay tied"
    lm = make('lm', tie=tie)
    lm.fit(1, 1e-2); lm.save_encoder('enc')
    other = make_dls(df[df.text.str.contains('music')].assign(text=lambda d: d.text.str.replace('warm', 'sunny')))
    clf = make(dls=other)
    clf.load_encoder('enc')
    old,new = text_vocab(lm.dls), text_vocab(other)
    src,dst = lm.model.encoder.emb.weight.detach().cpu(), clf.model.encoder.emb.weight.detach().cpu()
    shared = set(old) & set(new)
    assert 'sunny' not in shared and 'warm' not in new and old != new
    for t in shared - {'xxfake'}: assert src[old.index(t)].equal(dst[new.index(t)])
    close(dst[new.index('sunny')], src.mean(0))
    assert f'{sum(t in old for t in new)} of {len(new)} tokens found' in capsys.readouterr().out
    for (k,p),q in zip(lm.model.encoder.blocks.named_parameters(), clf.model.encoder.blocks.parameters()): assert p.cpu().equal(q.cpu()), k
    clf.save_encoder('back'); back = make('lm', tie=tie).load_encoder('back')
    assert (back.model.head.weight is back.model.encoder.emb.weight) == tie
    assert back.model.encoder.emb.weight[old.index('film')].cpu().equal(src[old.index('film')])

@pytest.mark.parametrize('kw,words', [(dict(d_model=32), 'd_model=16 \\(here 32\\)'), (dict(n_layers=1), 'n_layers=2 \\(here 1\\)'), (dict(wiring='post'), "wiring='pre' \\(here 'post'\\)"),
    (dict(n_heads=4), 'n_heads=2 \\(here 4\\)'), (dict(d_ff=32), 'd_ff='), (dict(qk_norm=True), 'qk_norm=False \\(here True\\)'), (dict(bigrams=90), 'bigrams=None \\(here 90\\)')])
def test_encoder_of_another_shape(make, kw, words):
    "Both values are named and nothing has changed"
    make().save_encoder('enc')
    learn = make(**kw)
    before = weights(learn)
    with pytest.raises(ValueError, match=words): learn.load_encoder('enc')
    assert not changed(learn, before)

def test_encoder_same_shape_said_otherwise(make):
    "What a default derives is the same as saying it"
    make().save_encoder('enc')
    make(d_ff=64, n_kv_heads=2, d_head=8).load_encoder('enc')

def test_encoder_of_other_blocks(make):
    make(block=OwnBlock).save_encoder('enc')
    learn = make()
    before = weights(learn)
    with pytest.raises(ValueError, match=r'blocks.0.lin.weight of shape \(16, 16\) \(here None\)'): learn.load_encoder('enc')
    assert not changed(learn, before)

def test_encoder_files(make, tmp_path):
    learn = make()
    before = weights(learn)
    with pytest.raises(FileNotFoundError, match='none.pth.*save_encoder'): learn.load_encoder('none')
    learn.save('whole')
    with pytest.raises(ValueError, match='whole.pth is no encoder'): learn.load_encoder('whole')
    assert not changed(learn, before)
    file = learn.save_encoder(tmp_path/'some'/'where.bin')
    assert file.exists(); learn.load_encoder(file)

def test_encoder_read_once(make, dls, tmp_path, monkeypatch):
    "The file of an encoder is read once, whether the learner's shape follows from it or not"
    read,load = [],transfer.load_tensors
    monkeypatch.setattr(transfer, 'load_tensors', lambda file, *args: read.append(file) or load(file, *args))
    file = make('lm').save_encoder('enc')
    learn = quiet(transformer_classifier_learner(dls, path=tmp_path)).load_encoder('enc')
    assert read == [file] and learn.model.config.d_model == SMALL['d_model']
    make(pretrained='enc')
    assert read == [file]*2

def test_encoder_fields():
    "A model of which nothing was asked takes over all by which an encoder may be refused"
    assert {*fields_of('shape', 'derived')} - {*UNUSED['classifier']} <= {*ENCODER_FIELDS}

@pytest.mark.parametrize('n,m', [(40,60), (60,40)])
def test_encoder_other_max_len(make, n, m):
    "Learned positions: those that both have"
    a,b = make(positions='learned', max_len=n), make(positions='learned', max_len=m)
    rest = b.model.encoder.positions.emb.weight.detach().clone()
    a.save_encoder('enc'); b.load_encoder('enc')
    got,k = b.model.encoder.positions.emb.weight, min(n,m)
    assert got.shape == (m,16) and got[:k].equal(a.model.encoder.positions.emb.weight[:k]) and got[k:].equal(rest[k:])

def test_remap_rows_of_none():
    new,found = remap_rows(torch.eye(2), ['a','b'], ['x'])
    assert found == 0 and new.tolist() == [[0.5,0.5]]

@both
def test_loaders_of_another_vocabulary(make, df, kind):
    "A learner refuses loaders in which its numbers mean something else, and takes others"
    learn,kw = make(kind), dict(is_lm=True, seq_len=16) if kind == 'lm' else {}
    of = learn.dls
    learn.dls = make_dls(df[20:], text_vocab=text_vocab(of), **kw); learn.validate()
    others = [make_dls(df.assign(text=df.text.str.replace('warm', 'zzz')), **kw)]
    if kind == 'clf': others.append(make_dls(df.assign(label=df.label.map(dict(pos='a', neg='b')))))
    for learn.dls in others:
        for f in (learn.validate, learn.get_preds, learn.show_results, partial(learn.fit, 1)):
            with pytest.raises(ValueError, match='other words: make them with the same'): f()
    learn.dls = of; learn.validate()

@both
def test_vocabularies_of_an_older_export(make, kind):
    "Lists of tokens and labels, whatever the loaders have; one that kept its tokens alone as a plain list answers, saves and loads"
    learn = make(kind)
    assert [*map(type, learn.vocabs)] == [list]*len(learn.vocabs) and learn.vocabs[0] == text_vocab(learn.dls)
    assert learn.vocabs == vocab_lists(None, learn.vocabs) == vocab_lists(learn.dls)
    if kind == 'lm': learn.vocabs = learn.vocabs[0]
    learn.validate(); learn.validate(dl=learn.dls.valid)
    learn.save('weights'); learn.load('weights'); make(kind).load('weights')

@pytest.mark.parametrize('number', [dict(drop_mult=np.float64(.5)), dict(drop_mult=np.float32(.5)), dict(d_model=np.int64(16))], ids=['float64','float32','int64'])
def test_numbers_of_numpy_in_a_configuration(make, number):
    "Files hold Python's own numbers, which are read without a pickle"
    learn = make(**number)
    make(**number, pretrained=learn.save_encoder('enc'))

def test_encoder_of_a_learner(make, tmp_path):
    "Without a file in between: the same as with one"
    lm = make('lm')
    a,b = make(pretrained=lm), make(pretrained=lm.save_encoder('enc'))
    for p,q in zip(a.model.encoder.parameters(), b.model.encoder.parameters()): assert p.equal(q) and p is not q
    with pytest.raises(ValueError, match='the learner holds an encoder with d_model=16'): make(d_model=32, pretrained=lm)
    with pytest.raises(TypeError, match='no `encoder`'): make(pretrained=make(arch=lambda c: nn.Linear(2, 2)))

def test_an_encoder_is_that_of_each_member(make, dls):
    "Frozen with the first, the others would stay as they were made"
    source = make()
    for learn in (make(members=3, pretrained=source.save_encoder('enc')), make(members=3).load_encoder(source)):
        for m in (learn.model, *learn.model.others):
            for p,q in zip(m.encoder.parameters(), source.model.encoder.parameters()): assert p.equal(q) and p is not q

def test_members_to_start_from(make, df):
    "Each member gives its own encoder, whose rows find their tokens among as many others"
    learn,swap = make(members=2), dict(warm='zz', clever='aa')
    old = learn.model.vocab = text_vocab(learn.dls)
    other = make_dls(df.assign(text=df.text.str.replace('warm|clever', lambda m: swap[m[0]], regex=True)))
    new = text_vocab(other)
    assert len(old) == len(new) and old != new
    model = make(dls=other, pretrained=learn.model).model
    for m,theirs in ((model, learn.model), (model.others[0], learn.model.others[0])):
        a,b = m.encoder.emb.weight, theirs.encoder.emb.weight
        for t in ('film','dull','xxbos'): assert a[new.index(t)].equal(b[old.index(t)])
        close(a[new.index('zz')], b.mean(0))
        for p,q in zip(m.encoder.blocks.parameters(), theirs.encoder.blocks.parameters()): assert p.equal(q)
    close(model.others[0].head.weight, learn.model.others[0].head.weight, 0)

def test_remap_rows_by_vectors():
    "Where rows are an affine map of vectors, new tokens get exactly their rows; shared ones keep theirs, and those without a vector start from the mean"
    torch.manual_seed(0)
    words,vectors = [f'w{i}' for i in range(30)], torch.randn(30, 4)
    rows = vectors @ torch.randn(4, 6) + torch.randn(6)
    silent = vectors.clone(); silent[-1] = 0
    got,found = remap_rows(rows[:20], words[:20], words[10:], silent[10:])
    assert found == 10 and got[:10].equal(rows[10:20])
    close(got[10:-1], rows[20:-1]); close(got[-1], rows[:20].mean(0))
    with pytest.raises(ValueError, match='4 tokens in both vocabularies are too few to place vectors of 4 numbers'): remap_rows(rows[:20], words[:20], words[16:], vectors[16:])
    assert remap_rows(rows, words, words, vectors)[0].equal(rows) # nothing to place
    few,zeros = rows[:3], torch.zeros(4, 4)
    assert remap_rows(few, words[:3], words[:3], vectors[:3])[0].equal(few) # from however few
    assert remap_rows(few, words[:3], words[:4], zeros)[0][3].equal(few.mean(0))

@pytest.mark.parametrize('form', [torch.Tensor.numpy, torch.Tensor.double, torch.Tensor.half, lambda v: pd.DataFrame(v.numpy()), lambda v: v.double().numpy(), torch.Tensor.tolist])
def test_vectors_in_any_form(form):
    "Of another library's file, say; and for rows of an encoder in half precision"
    torch.manual_seed(0)
    words,vectors,rows = [f'w{i}' for i in range(30)], torch.randn(30, 4).half().float(), torch.randn(20, 6)
    want = remap_rows(rows, words[:20], words, vectors)[0]
    close(remap_rows(rows, words[:20], words, form(vectors))[0], want)
    half = remap_rows(rows.half(), words[:20], words, form(vectors))[0]
    assert half.dtype is torch.float16 and half[:20].equal(rows.half())
    close(half.float(), want, 1e-2)

def test_load_encoder_by_position(make):
    "fastai's order, file and device; what is no device is refused before anything changes"
    source = make('lm')
    source.save_encoder('enc')
    learn = make().load_encoder('enc', 'cpu')
    close(learn.model.encoder.emb.weight.cpu(), source.model.encoder.emb.weight.cpu())
    before = weights(other := make())
    with pytest.raises(TypeError): other.load_encoder('enc', torch.randn(9, 16))
    with pytest.raises(FileNotFoundError): other.load_encoder('none', 'meta')
    assert not changed(other, before)
    assert {p.device.type for p in other.load_encoder('enc', 'meta').model.parameters()} == {'meta'}

def test_get_preds_by_position(make):
    "fastai's order; learners that give other things take names alone"
    learn = make()
    res = learn.get_preds(1, None, True, True, True, noop, False, True, None)
    names = dict(with_input=True, with_decoded=True, with_loss=True, act=noop)
    for a,b in zip(res, learn.get_preds(**names), strict=True): assert len(a) == len(b) and all(map(torch.equal, a, b))
    with pytest.raises(TypeError, match='positional'): make('lm').get_preds(1, None, True)

def test_load_encoder_with_vectors(make, df):
    "A word that only the classifier's texts have starts where the map puts it"
    lm = make('lm'); lm.save_encoder('enc')
    other = make_dls(df[df.text.str.contains('music')].assign(text=lambda d: d.text.str.replace('warm', 'sunny')))
    old,new = text_vocab(lm.dls), text_vocab(other)
    vectors = torch.rand(len(new), 2)
    got = make(dls=other).load_encoder('enc', vectors=vectors).model.encoder.emb.weight.detach().cpu()
    src = lm.model.encoder.emb.weight.detach().cpu()
    def numbered(ts): return [(t, ts[i+1:].count(t)) for i,t in enumerate(ts)] # fillers have one name, the last may be the mask
    index,shared = {t:i for i,t in enumerate(numbered(old))}, [i for i,t in enumerate(new) if t in old]
    of = [index.get((t,n), index.get((t,0))) for t,n in numbered(new)]
    x = torch.cat([vectors, torch.ones(len(new), 1)], 1)
    want = x @ torch.linalg.pinv(x[shared]) @ src[[of[i] for i in shared]]
    i = new.index('sunny')
    close(got[i], want[i], 1e-5); assert not got[i].equal(src.mean(0))
    learn = make(dls=other); before = weights(learn)
    with pytest.raises(ValueError, match=r'`vectors` of 3 tokens for .* tokens of `new`'): learn.load_encoder('enc', vectors=vectors[:3])
    assert not changed(learn, before)

def test_encoder_with_bigrams(make, df):
    "Into a classifier of the same vocabulary, bit for bit; a pair of another vocabulary is another pair"
    lm = make('lm', bigrams=90)
    nn.init.normal_(lm.model.encoder.bigrams.table.weight)
    lm.save_encoder('enc')
    learn = make(bigrams=90).load_encoder('enc')
    assert learn.model.encoder.bigrams.table.weight.cpu().equal(lm.model.encoder.bigrams.table.weight.cpu())
    other = make(dls=make_dls(df.assign(text=df.text.str.replace('warm', 'sunny'))), bigrams=90)
    before = weights(other)
    with pytest.raises(ValueError, match='bigrams=90: the pairs of the encoder'): other.load_encoder('enc')
    assert not changed(other, before)

@pytest.mark.parametrize('pool', ['first','last'])
def test_empty_text_beside_long_ones(make, pool):
    "What is said of a text without tokens does not depend on the others"
    model = make(pool=pool, max_len=8).model.eval()
    pad = model.config.pad_idx
    none,long = torch.full((1,20), pad), torch.randint(2, 20, (1,20))
    close(model(torch.cat([none, long]))[:1], model(none[:,:3]))

# Folders, as the workshop writes them

@pytest.fixture(scope='module')
def folder(df, tmp_path_factory):
    "The texts as files, tokenized once for the tests that read them"
    path = tmp_path_factory.mktemp('folder')/'texts'
    for i,o in enumerate(df.itertuples()):
        f = path/('test' if o.is_valid else 'train')/o.label/f'{i}.txt'
        f.parent.mkdir(parents=True, exist_ok=True); f.write_text(o.text)
    tokenize_folder(path, n_workers=0)
    return path

def test_classes_from_a_folder(folder, df):
    block = DataBlock(blocks=(TextBlock.from_folder(folder, max_vocab=10_000, seq_len=256), CategoryBlock), get_items=get_text_files, get_y=parent_label,
                      splitter=GrandparentSplitter(valid_name='test'))
    dls = block.dataloaders(folder, path=folder, bs=8, num_workers=0)
    learn = quiet(transformer_classifier_learner(dls, **SMALL, metrics=accuracy))
    learn.fit_one_cycle(3, 1e-2)
    assert len(dls.valid_ds) == 16 and learn.recorder.values[-1][-1] > 0.8
    assert learn.predict('a warm lovely film')[0] == 'pos'
    preds,targs = learn.get_preds()
    assert [dls.vocab[1][t] for t in targs] == [f.parent.name for f in dls.valid_ds.items]
    close(learn.predict([f.read_text() for f in dls.valid_ds.items])[2], preds)

def test_lm_from_a_folder(folder):
    "freeze, find a rate, unfreeze, train; three times; save"
    block = DataBlock(blocks=TextBlock.from_folder(folder, is_lm=True, max_vocab=10_000, seq_len=16), get_items=get_text_files, splitter=GrandparentSplitter(valid_name='test'))
    dls = block.dataloaders(folder, path=folder, bs=8, seq_len=16, num_workers=0)
    learn = quiet(transformer_lm_learner(dls, **SMALL, metrics=[accuracy, Perplexity()]))
    losses = [learn.validate()[0]]
    for _ in range(3):
        learn.freeze()
        lr = learn.lr_find(num_it=10, show_plot=False).valley
        learn.unfreeze()
        learn.fit_one_cycle(1, 1e-2)
        assert np.isfinite(lr)
        losses.append(learn.recorder.values[-1][1])
    assert losses[-1] < losses[1] < losses[0]
    file = learn.save('lm')
    before = weights(learn)
    learn.fit(1, 1e-2); learn.load('lm')
    assert file.exists() and not changed(learn, before)

# Odd texts and labels

@pytest.mark.parametrize('kw', [dict(), dict(long='head+tail'), dict(positions='learned', long='tail'), dict(pool='first')])
def test_odd_texts(make, kw):
    "Beyond `max_len`, empty, only unknown words: finite, and the same alone as beside others"
    learn = make(max_len=64, **kw)
    odd = ['warm dull film '*1667, '', 'zzzz qqqq xyzzy', 'a warm film', 'dull '*64, 'dull '*65]
    labels,_,probs = learn.predict(odd, bs=6)
    assert probs.isfinite().all() and set(labels) <= {'pos','neg'}
    for t,p in zip(odd, probs): close(learn.predict(t)[2], p)
    logits = lambda ts: learn.get_preds(dl=learn.dls.test_dl(ts, num_workers=0), act=lambda o: o)[0]
    for t,p in zip(odd, logits(odd)): close(logits([t])[0], p)

def test_training_on_odd_texts(df, make):
    odd = df.copy()
    odd.loc[[0,1,4],'text'] = ['', 'zzz', 'warm '*3000]
    learn = make(dls=make_dls(odd), max_len=64)
    learn.fit(1, 1e-3)
    assert np.isfinite(learn.recorder.values[-1]).all()

def test_missing_text(df):
    bad = df.copy(); bad.loc[7,'text'] = np.nan
    for make in (lambda: TransformerDataLoaders.from_df(bad, text_col='text', label_col='label', valid_col='is_valid'), lambda: check_df(bad, 'text', 'label', 'is_valid')):
        with pytest.raises(ValueError, match="'text'.*nan.*1 of 80 rows \\(index 7\\).*dropna"): make()

def test_label_in_validation_only(df):
    "fastai's loaders fail while iterating; the factory before that"
    bad = df.copy(); bad.loc[4,'label'] = 'mixed'
    dls = make_dls(bad)
    with pytest.raises(ValueError, match="'mixed'.*1 of 16 validation rows.*\\['neg', 'pos'\\]"): transformer_classifier_learner(dls, **SMALL)
    with pytest.raises(ValueError, match="'mixed'"): TransformerDataLoaders.from_df(bad, text_col='text', label_col='label', valid_col='is_valid')

def test_too_little_validation_text(df):
    "An LM that would be validated on nothing"
    few = df[~df.is_valid | (df.index == 4)]
    with pytest.raises(ValueError, match='validation set has .* tokens'): transformer_lm_learner(make_dls(few, is_lm=True, seq_len=16, bs=64))

# What fastai's own learners do to such models, and these do not

@both
def test_built_on_learner(make, kind):
    "No callbacks for recurrent models; a loss from the start; plain tensors from tensors of text"
    learn = make(kind)
    assert not any('RNN' in type(c).__name__ or 'Reset' in type(c).__name__ for c in learn.cbs) and isinstance(learn, Learner)
    assert type(learn.loss_func).__name__ == 'CrossEntropyLossFlat' and hasattr(learn.loss_func, 'decodes')
    x = learn.dls.one_batch()[0]
    assert type(x) is not torch.Tensor and type(learn.model.to(x.device)(x)) is torch.Tensor
    x = make_batch_of_padding(learn)
    assert learn.model(x).isfinite().all()

def make_batch_of_padding(learn):
    "A row of nothing but padding beside a text"
    x = learn.dls.one_batch()[0].as_subclass(torch.Tensor)[:2].clone()
    x[0] = pad_index(learn.dls)
    return x

def test_whole_documents_attend(make):
    "The start of a text reaches its end: no chunks of 72 tokens without attention across them"
    learn = make('lm', positions='rotary', max_len=512)
    x = torch.randint(5, 20, (1,300), device=next(learn.model.parameters()).device)
    y = x.clone(); y[0,0] = 21
    model = learn.model.eval()
    assert (model.encoder(x)-model.encoder(y))[0,-1].abs().max() > 0

def test_only_empty_texts():
    "A batch without a single token is one of padding"
    x,lens = compact(torch.zeros(2, 0, dtype=torch.long), pad_idx=1)
    assert x.tolist() == [[1],[1]] and lens.tolist() == [0,0]

# What a model does not use, and what the factories take over

NOT_USED = [('clf', dict(share_emb=True)), ('clf', dict(n_dec_layers=1)), ('clf', dict(tgt_vocab_sz=9)),
            ('clf', dict(tie=False)), ('lm', dict(pool='mean')), ('lm', dict(n_out=3)), ('lm', dict(long='head')),
            ('lm', dict(token_p=0.1)), ('lm', dict(share_emb=True))]

@pytest.mark.parametrize('kind,kw', NOT_USED)
def test_fields_that_the_model_does_not_use(make, kind, kw):
    "An error, not silence; a model of one's own may use any"
    with pytest.raises(TypeError, match=f'{[*kw][0]}.*that this model uses'): make(kind, **kw)
    make(kind, arch=OwnLM if kind == 'lm' else OwnModel, **kw)

def test_pretrained_gives_its_values(make):
    "A factory takes over what its caller has left open, so that `save` then `load` agree"
    file = make(scale_emb=True, eps=1e-3).save_encoder('enc')
    a,b = make('lm', pretrained=file), make('lm', pretrained='enc')
    assert a.model.encoder.config.scale_emb and a.model.config.scale_emb and a.model.config.eps == 1e-3
    a.save('whole'); b.load('whole')
    x = torch.arange(2, 12)[None]
    close(a.model.eval()(x), b.model.eval()(x), 0)
    with pytest.raises(ValueError, match='scale_emb=True .here False.'): make('lm', pretrained=file, scale_emb=False, eps=1e-3)
    with pytest.raises(ValueError, match=r'eps=0.001 .here 1e-05.'): make('lm', pretrained=file, eps=1e-5)
    assert not make(pretrained=file).model.config.scale_emb # a classifier's rows take the factor up

def test_wavelengths_are_compared(make):
    learn = make()
    for m in learn.model.modules():
        if hasattr(m, 'base'): m.base = 500.
    file = learn.save_encoder('enc')
    with pytest.raises(ValueError, match='base=500.0 .here 10000.0.'): make().load_encoder(file)

@pytest.mark.parametrize('way', ['file','learner','pretrained'])
def test_an_encoder_of_other_parts(make, way):
    "Blocks of another class with the same weights: taken, as that may be meant, with a warning that names both; the same blocks, and other dropout, without"
    class Louder(TransformerBlock):
        def forward(self, x, *args, **kw): return 2*super().forward(x, *args, **kw)
    learn = make(block=Louder)
    source = learn if way == 'learner' else learn.save_encoder('louder')
    def load(**kw): return make(pretrained=source, **kw) if way == 'pretrained' else make(**kw).load_encoder(source)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        load(block=Louder, p=0.3)
    with pytest.warns(UserWarning, match=r'blocks.0: Louder \(here TransformerBlock\)') as seen: load()
    assert way == 'pretrained' or seen[0].filename == __file__

@pytest.mark.parametrize('way', ['file','learner','pretrained'])
def test_an_encoder_of_the_other_direction(make, df, way):
    "An encoder that read its texts backwards is taken with a warning that names the loaders that fit; within loaders of its own direction without"
    forward,back = (make_dls(df, backwards=o) for o in (False,True))
    learn = make(dls=back)
    source = learn if way == 'learner' else learn.save_encoder('back')
    def load(dls): return make(dls=dls, pretrained=source) if way == 'pretrained' else make(dls=dls).load_encoder(source)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        load(back)
    with pytest.warns(UserWarning, match='learned from loaders with backwards=True, and these have backwards=False: make them with backwards=True'): load(forward)

def test_old_encoder_files(make, tmp_path):
    "Without the wavelengths, and without the fields of later versions, as they were written before"
    file = make().save_encoder('enc')
    saved = torch.load(file, weights_only=True)
    for k in ('bases','parts','backwards'): saved.pop(k)
    for f in ('qk_norm','bigrams'): saved['config'].pop(f)
    torch.save(saved, file)
    make().load_encoder('enc')
    with pytest.raises(ValueError, match=r'qk_norm=False \(here True\)'): make(qk_norm=True).load_encoder('enc')

def test_load_encoder_freezes(make, capsys):
    "As fastai's does, unless told otherwise, and says so"
    file = make().save_encoder('enc')
    learn = make().load_encoder(file)
    assert learn.opt.frozen_idx == len(learn.opt.param_lists)-1 and 'frozen but for the last group' in capsys.readouterr().out
    learn = make().load_encoder(file, freeze=False)
    assert learn.opt is None and 'frozen' not in capsys.readouterr().out

# What is said in time

def test_rate_beyond_the_width(make):
    "A warning that names a fitting rate before anything is trained; later for the head alone, none for `lr_find`, for SGD, fastai's or torch's"
    with pytest.warns(UserWarning, match='0.1 is far beyond.*d_model=16.*about 0.01'): make().fit_one_cycle(1, 0.1)
    with pytest.warns(UserWarning, match='far beyond'): make().fit(1, slice(0.01, 0.1))
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='.*far beyond')
        make().fit_one_cycle(1, 2e-2)
        learn = make(); learn.freeze(); learn.fit_one_cycle(1, 0.1)
        make().lr_find(num_it=5, show_plot=False)
        for opt in (SGD, partial(TorchOptimizer, opt=partial(torch.optim.SGD, momentum=0.9))): make(opt_func=opt).fit(1, 0.1)

@pytest.mark.parametrize('at,error', [(0,KeyboardInterrupt), (25,KeyboardInterrupt), (25,RuntimeError)])
def test_a_search_that_is_broken_off(make, tmp_path, at, error):
    "Weights, optimizer and files are as they were before `lr_find`"
    class Break(Callback):
        order = -60 # at the start of the search: before it has saved anything
        def before_fit(self):
            if not at: raise error('now')
        def after_step(self):
            if self.learn.train_iter == at: raise error('now')
    learn = make(path=tmp_path)
    learn.fit(1, 1e-3)
    def state(): return deepcopy([learn.model.state_dict(), learn.opt.state_dict()])
    old,files = state(),{*(tmp_path/'models').rglob('*')}
    with learn.added_cbs(Break()), pytest.raises(error): learn.lr_find(num_it=50, show_plot=False)
    def pairs(a, b):
        if isinstance(a, dict): return [p for k in a | b for p in pairs(a[k], b[k])]
        return [p for x,y in zip(a, b, strict=True) for p in pairs(x, y)] if isinstance(a, (list,tuple)) else [(a,b)]
    for a,b in pairs(old, state()): assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert {*(tmp_path/'models').rglob('*')} == files
    assert learn.validate()[0] == learn.validate()[0]
    learn.fit(1, 1e-3)

def test_fine_tune(make):
    "Rates by the width; lower groups a tenth"
    learn = make()
    learn.fine_tune(1, freeze_epochs=1)
    assert max(learn.recorder.lrs) <= 2.1*width_lr(16) and learn.opt.frozen_idx == 0
    low,top = learn.opt.hypers[0]['lr'], learn.opt.hypers[-1]['lr']
    assert top/low == pytest.approx(10, rel=1e-3)

def test_width_lr():
    assert (width_lr(16), width_lr(128), width_lr(512)) == (0.012, 0.0015, 0.000375)
    assert (width_lr(128, "muon"), width_lr(512, "muon")) == (0.01, 0.0025)

def test_predict_of_a_path(make, tmp_path):
    "fastai reads the file; here the error says how"
    (tmp_path/'a.txt').write_text('a warm film')
    path,learn = tmp_path/'a.txt', make()
    for item in (path, [path], ['a film',path]):
        with pytest.raises(TypeError, match=r'a\.txt.*PosixPath.*give its text, path.read_text\(\)$'): learn.predict(item)
    assert learn.predict(path.read_text())[0] in ('neg','pos')

@pytest.mark.parametrize('field', ['p','attn_p','ff_p','emb_p','head_p','token_p','word_p'])
def test_monte_carlo_dropout(make, field):
    "fastai's callback switches each kind of dropout on while predicting, and off again"
    off = dict.fromkeys(['p','attn_p','ff_p','emb_p','head_p','token_p','word_p'], 0.)
    learn = make(**{**off, field:0.5})
    plain = learn.get_preds()[0]
    one,two = [learn.get_preds(cbs=MCDropoutCallback())[0] for _ in range(2)]
    assert not one.allclose(two) and not one.allclose(plain)
    assert learn.get_preds()[0].equal(plain)

def test_recorded_attention_is_without_dropout(make):
    "Also where dropout alone is on; it stays on"
    model = make(attn_p=0.5, emb_p=0.).model
    x = torch.randint(9, 20, (2,7))
    def weights():
        with record_attention(model) as seen: model(x)
        return [w for calls in seen.values() for _,w in calls]
    model.eval()
    plain = weights()[0]
    for m in model.modules():
        if isinstance(m, nn.Dropout): m.train()
    assert weights()[0].equal(plain) and not model(x).allclose(model(x))

def test_model_of_an_older_export(make):
    "Its attention has a number in place of a module: dropout in training as before"
    learn = make(p=0., emb_p=0., head_p=0., attn_p=0.5, token_p=0.3)
    model = learn.model
    for m in model.modules():
        if isinstance(m, SelfAttention): m.p = parts_of(m).pop('attn_drop').p
    del parts_of(model)['token_drop']
    model,x = pickle.loads(pickle.dumps(model)), learn.dls.one_batch()[0]
    assert not model.train()(x).allclose(model(x))
    assert model.eval()(x).equal(model(x))
    assert model.state_dict().keys() == make().model.state_dict().keys()

# Predicting without a loop

def test_predict_calls_no_callback(make):
    learn = make(cbs=(cb := All()))
    cb.heard.clear()
    learn.predict(texts); learn.predict('a')
    assert not cb.heard

def test_own_model_sees_no_padding(make):
    "A model that does not know of padding says of a text what it says of it alone"
    learn = make(arch=OwnModel)
    many = learn.predict(texts[:2]*3 + texts[3:])[2]
    for t,p in zip(texts[:2]*3 + texts[3:], many): close(learn.predict(t)[2], p)

@pytest.mark.parametrize('kind', ['clf','multi','reg'])
def test_predict_is_get_preds(make, df, kind):
    "One label, several, numbers"
    learn = make(kind)
    labels,dec,preds = learn.predict(df[df.is_valid], bs=3)
    want = learn.get_preds(with_decoded=True)
    close(preds, want[0]); close(torch.as_tensor(dec).float(), torch.as_tensor(want[2]).float()); assert len(labels) == 16
    one = learn.predict(dict(df[df.is_valid].iloc[3]))
    close(one[2], preds[3])
    if kind == 'reg': assert tuple(one[0]) == pytest.approx(tuple(labels[3]), abs=1e-5)
    else: assert str(one[0]) == str(labels[3])

def test_codec(make, df):
    "Kept while the loaders are the same, and no part of a file"
    learn = make()
    codec = learn.codec
    assert learn.codec is codec and '_codecs' not in learn.__getstate__()
    learn.dls = make_dls(df, text_vocab=text_vocab(learn.dls))
    assert learn.codec is not codec

@pytest.mark.parametrize('n,m', [(1,3),(3,1),(2,2)])
def test_remap_rows_keeps_the_mask(n, m):
    "The last filler stands for a gap, however many there are"
    old,new = ['a',*['xxfake']*n], [*['xxfake']*m,'a']
    out,_ = remap_rows(torch.arange(n+1.), old, new)
    assert out[m-1] == n and out[m] == 0

@pytest.mark.parametrize('kind', ['clf','multi','reg'])
@pytest.mark.parametrize('with_input', [False, True])
def test_targets_alone(make, kind, with_input):
    "Without predictions there is none to decode"
    learn = make(kind)
    res = learn.get_preds(with_preds=False, with_decoded=True, with_input=with_input)
    assert res[with_input] is None and res[1+with_input].equal(learn.get_preds()[1])

# Weights of classes in a loss

class Weighted(nn.CrossEntropyLoss):
    "A loss of one's own, with what fastai asks for"
    def decodes(self, x): return x.argmax(-1)
    def activation(self, x): return x.softmax(-1)

with_weights = dict(cross=lambda w: CrossEntropyLossFlat(weight=w), focal=lambda w: FocalLossFlat(weight=w), bare=lambda w: FocalLoss(weight=w),
                    smooth=lambda w: LabelSmoothingCrossEntropyFlat(weight=w), own=lambda w: Weighted(weight=w), several=lambda w: BCEWithLogitsLossFlat(pos_weight=w))
bad_weights = dict(double=(torch.ones(2).double(), r'weight is of torch.float64, outputs of torch.float32: give weight.to\(torch.float32\)'), whole=(torch.ones(2).long(), r'weight is of torch.int64, outputs of torch.float32: give weight.to\(torch.float32\)'), half=(torch.ones(2).half(), r'weight is of torch.float16, outputs of torch.float32: give weight.to\(torch.float32\)'),
                   long=(torch.ones(4), r'weight has the shape \(4,\): give one for each of [23] labels'), nan=(torch.tensor([1.,float('nan')]), 'weight=.*finite numbers'),
                   inf=(torch.tensor([1.,float('inf')]), 'weight=.*finite numbers'), negative=(torch.tensor([1.,-1.]), 'weight=.*of 0 or more'), zero=(torch.zeros(2), 'weight=.*one of them above 0'))

@pytest.mark.parametrize('loss,bad', [(l, b) for l in with_weights for b in bad_weights if l != 'several' or b not in ('double','whole','half')])
def test_weights_of_classes_are_checked(make, loss, bad):
    "When the learner is made, and not after the words are counted; a loss of several labels multiplies by weights of any type"
    w,match = bad_weights[bad]
    kind = 'multi' if loss == 'several' else 'clf'
    if loss == 'several' and len(w) == 2: w = w[[0,1,1]]
    with pytest.raises(ValueError, match=match): make(kind, loss_func=with_weights[loss](w))

@pytest.mark.parametrize('loss', with_weights)
def test_weights_of_classes_train(make, loss):
    kind = 'multi' if loss == 'several' else 'clf'
    make(kind, loss_func=with_weights[loss](torch.tensor([0.,2.,1.][:3 if kind == 'multi' else 2]))).fit(1)

def test_weights_of_an_array(make):
    with pytest.raises(TypeError, match=r'weight is a ndarray.*torch.tensor\(weight\).float\(\)'): make(loss_func=FocalLossFlat(weight=np.ones(2)))

class Asks(Callback):
    "Validates or predicts when an epoch's training is over"
    def __init__(self, asks=None): self.asks,self.told = asks,[]
    def after_train(self):
        with no_random(): self.told.append(self.asks and self.asks(self.learn))

@both
@pytest.mark.parametrize('asks', [lambda o: o.validate(), lambda o: o.get_preds(), lambda o: o.validate(cbs=Listener())], ids=['validate','get_preds','cbs'])
def test_validation_within_a_fit(make, kind, asks, df, tmp_path):
    "To the bit the fit is as without: weights, record, log, the count of steps, mixed precision, gradients that wait for more texts"
    def fitted(cb):
        set_seed(1)
        learn = make(kind, dls=make_dls(df, **(dict(is_lm=True, seq_len=16) if kind == 'lm' else {})), metrics=accuracy).to_bf16()
        counts,heard = [], All()
        class Counts(Callback):
            def after_epoch(self): counts.append((self.epoch, self.train_iter, self.pct_train))
        learn.fit_one_cycle(3, 1e-2, cbs=[cb, Counts(), heard, GradientAccumulation(9), CSVLogger()])
        rec,log = learn.recorder, pd.read_csv(tmp_path/'history.csv').drop(columns='time')
        return [learn.last_fit, rec.values, [*map(float, rec.losses)], rec.iters, rec.lrs, rec.hps, counts, log.values.tolist()], weights(learn), heard.heard.count('before_fit')
    cb = Asks(asks)
    want,ours = fitted(Asks()), fitted(cb)
    assert str(want[0]) == str(ours[0]) and want[0][0]['epochs'] == 3 and want[2] == ours[2] == 1
    for k,v in want[1].items(): assert torch.equal(v, ours[1][k]), k
    if asks.__code__.co_names[0] == 'validate': assert [*cb.told[-1]] == want[0][1][-1][1:]

@pytest.mark.parametrize('asks', ['validate','get_preds'])
@pytest.mark.parametrize('at', ['before_train','after_step','after_batch','before_validate','after_validate'])
def test_validation_at_any_time_of_a_fit(make, df, at, asks):
    "A step goes on with its batch, an epoch with its loader, in training, and the rows are of its own texts"
    class AsksOnce(Callback):
        asked = True
        def __call__(self, event_name):
            if event_name != at or self.asked: return
            self.asked = True
            with no_random(): getattr(self.learn, asks)(dl=self.dls.test_dl(df[:7], with_labels=True))
    def fitted(cb):
        set_seed(1)
        learn = make('clf', dls=make_dls(df), metrics=accuracy)
        learn.fit(2, 1e-2, cbs=cb)
        return learn.recorder.values, len(learn.recorder.losses), weights(learn)
    cb = AsksOnce()
    want,cb.asked = fitted(cb), False
    ours = fitted(cb)
    assert cb.asked and ours[:2] == want[:2]
    for k,v in want[2].items(): assert torch.equal(v, ours[2][k]), k

@both
def test_callbacks_of_a_validation_within_a_fit(make, kind):
    "They hear it begin and end, also if it is broken off"
    class Stops(All):
        def __call__(self, event_name):
            super().__call__(event_name)
            if event_name == 'after_pred': raise KeyboardInterrupt
    def asks(learn):
        for f in (learn.validate, learn.get_preds):
            f(cbs=(cb := All()))
            assert cb.heard[:2] == ['before_fit','before_epoch'] and cb.heard[-2:] == ['after_epoch','after_fit']
        with pytest.raises(KeyboardInterrupt): learn.validate(cbs=(cb := Stops()))
        assert cb.heard[-3:] == ['after_pred','after_epoch','after_fit']
    learn = make(kind)
    learn.fit(2, 1e-3, cbs=Asks(asks))
    assert len(learn.recorder.values) == 2

class Copies(Callback):
    "Copies and exports the learner in its first epoch"
    def after_epoch(self):
        if self.epoch: return
        self.learn.export('within.pkl')
        self.copied = deepcopy(self.learn)

@both
@pytest.mark.parametrize('fit', ['fit_one_cycle','fit_minutes'])
def test_copies_made_in_a_fit(make, kind, fit, tmp_path):
    "The callbacks of that fit stay with it, which goes on; a copy and a file train by schedules of their own"
    learn,cb = make(kind), Copies()
    n = len(learn.dls.train)
    getattr(learn, fit)(2 if fit == 'fit_one_cycle' else 1/60, 1e-2, cbs=cb)
    assert learn.recorder.lrs[-1] < max(learn.recorder.lrs)/2
    for new in (cb.copied, load_learner(tmp_path/'within.pkl')):
        assert new.cbs.map(type) == learn.cbs.map(type) and not hasattr(new, 'param_scheduler')
        new.dls = learn.dls
        new.fit(2, 1e-5)
        assert new.recorder.lrs == [1e-5]*2*n and len(new.recorder.values) == 2

@both
def test_copied_where_an_epoch_is_cut_short(make, kind):
    "As the clock does at the end of `fit_minutes`: the loader that was left halfway is copied with the learner"
    class Cuts(Callback):
        def after_batch(self):
            if self.training: raise CancelTrainException
        def after_epoch(self): self.copied = deepcopy(self.learn)
    learn,cuts = make(kind), Cuts()
    learn.fit(1, 1e-3, cbs=cuts)
    close(weights(cuts.copied), weights(learn))
    cuts.copied.fit(1, 1e-3)

@pytest.mark.parametrize('own', [True,False])
def test_export_with_a_csv_logger(make, own, tmp_path):
    "The open file stays with the fit, which writes every row; what is copied or exported in the fit and after it logs into a file of its own"
    class Writes(Callback):
        def after_epoch(self):
            self.learn.export('within.pkl')
            self.copied = deepcopy(self.learn)
    writes,log = Writes(), CSVLogger()
    learn = make(cbs=log if own else None)
    learn.fit(2, 1e-3, cbs=[writes] if own else [writes, log])
    learn.export('after.pkl')
    def rows(): return len(pd.read_csv(tmp_path/'history.csv'))
    assert rows() == 2
    for new in (writes.copied, load_learner(tmp_path/'within.pkl'), load_learner(tmp_path/'after.pkl')):
        new.dls = learn.dls
        new.fit(3, 1e-3)
        assert rows() == (3 if own else 2)
        new.validate()

def test_a_csv_logger_after_ctrl_c(make, tmp_path):
    "Without a bar, too, the next fit writes its rows once, and is copied"
    class Stops(Callback):
        def after_step(self): raise KeyboardInterrupt
    learn = make(cbs=CSVLogger())
    with learn.no_bar():
        with pytest.raises(KeyboardInterrupt): learn.fit(1, 1e-3, cbs=Stops())
        learn.fit(1, 1e-3)
        learn.fit(2, 1e-3, cbs=(cb := Copies()))
    assert len(pd.read_csv(tmp_path/'history.csv')) == 2 and cb.copied.cbs.map(type) == learn.cbs.map(type)

@both
def test_export_in_a_batch(make, kind, tmp_path):
    "The fit goes on with its batch, and its losses are all recorded"
    class Writes(Callback):
        def after_step(self): self.learn.export('now.pkl')
    learn = make(kind)
    learn.fit(1, 1e-3, cbs=Writes())
    assert len(learn.recorder.losses) == len(learn.dls.train) and load_learner(tmp_path/'now.pkl').predict('a warm film')

@pytest.mark.parametrize('kind', ['clf','lm'])
def test_padding_is_the_vocabularys(make, kind):
    "A model that took another token for padding would leave it out of texts, and read the padding; -1 is none"
    with pytest.raises(ValueError, match="'xxpad' is token 1 .*padding is token 0: leave out pad_idx="): make(kind, pad_idx=0)
    assert make(kind, pad_idx=1).model.config.pad_idx == 1
