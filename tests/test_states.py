"Cells run in any order: looking first, breaking off, going on with other data"
import random
import pandas as pd, pytest, torch
from torch import nn
from fastai.text.all import DataLoader, DataLoaders, EarlyStoppingCallback, SaveModelCallback, accuracy, load_learner
from fastai_txf.model.models import TransformerClassifier
from fastai_txf.text.pairs import Seq2SeqDataLoaders
from fastai_txf.text.tokens import CharTokenizer
from fastai_txf.train.optim import SpareDecay
from fastai_txf.train.resume import ResumeCallback
from fastai_txf.learn.writing import SampleText
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.seq2seq import transformer_seq2seq_learner
from fixtures import *

class Stop(Callback):
    "Ctrl-C before a fit, or validation, begins, or at its first batch"
    order = 90
    def __init__(self, at='before_fit'): self.at,self.on = at,True
    def _stop(self, at):
        if self.on and self.at == at: raise KeyboardInterrupt
    def before_fit(self): self._stop('before_fit')
    def after_batch(self): self._stop('after_batch')

def auto(dls, path, **kw): return quiet(transformer_classifier_learner(dls, path=path, **kw))

looks = dict(validate=lambda l: l.validate(), get_preds=lambda l: l.get_preds(), results=lambda l: l.show_results(max_n=2))

@pytest.mark.parametrize('look', looks.values(), ids=looks)
def test_looking_counts_nothing(dls, tmp_path, look):
    "A learner that was only looked at has no counted words yet: the first fit counts those of the texts that it trains on"
    learn = auto(dls, tmp_path)
    before = {k:v.clone() for k,v in learn.model.state_dict().items()}
    look(learn)
    assert not learn.model.wide.counted
    for k,v in learn.model.state_dict().items(): assert v.equal(before[k]), k
    learn.fit(1)
    assert learn.model.wide.counted

@pytest.mark.parametrize('before', ['nothing','search','fit'])
def test_shares_of_an_encoder_that_has_read(dls, make, tmp_path, before):
    "What the wide path says beside an encoder that has read other texts does not depend on when it was counted; unless it was said"
    enc = auto(dls, tmp_path).save_encoder('enc')
    learn = auto(dls, tmp_path)
    if before == 'search': learn.lr_find(show_plot=False, num_it=12)
    if before == 'fit': learn.fit(1)
    learn.load_encoder(enc)
    learn.fit(1)
    torch.testing.assert_close(learn.model.wide.shares.cpu(), torch.tensor([0.3,0.5]))

def test_chosen_shares_stay(dls, tmp_path):
    "Shares that somebody has chosen are no business of `load_encoder`, in whatever way they came"
    enc = auto(dls, tmp_path).save_encoder('enc')
    own = auto(dls, tmp_path).count_wide(share=(0.2,0.7))
    own.save('own')
    for learn in (own, auto(dls, tmp_path).load('own')):
        learn.load_encoder(enc)
        torch.testing.assert_close(learn.model.wide.shares.cpu(), torch.tensor([0.2,0.7]))

def test_exported_before_a_fit(dls, df, tmp_path):
    learn = auto(dls, tmp_path)
    learn.export('u.pkl')
    loaded = quiet(load_learner(tmp_path/'u.pkl'))
    preds,_ = loaded.get_preds(dl=loaded.dls.test_dl(df[:5]))
    torch.testing.assert_close(preds, loaded.predict(df.text[:5].tolist())[2])
    with pytest.raises(ValueError, match='no training texts.*learn.dls = dls'): loaded.count_wide()

@both
def test_a_validation_that_cannot_begin(make, kind):
    "It leaves no lock behind, and no callback that sits out the next fit"
    stop,save = Stop(), SaveModelCallback(fname='best')
    learn = make(kind, cbs=[stop,save])
    for look in looks.values():
        with pytest.raises(KeyboardInterrupt): look(learn)
        assert not learn.lock.locked()
    stop.on = False
    assert len(learn.validate()) and not learn.lock.locked()
    learn.fit(1, cbs=ResumeCallback('r', every=1))
    assert (learn.path/'models'/'best.pth').exists()

def test_trackers_sit_out_a_validation(make):
    "`validate` beside `SaveModelCallback` has a record without the training loss: nothing is compared with it, and nothing saved"
    learn = make('clf', metrics=accuracy, cbs=SaveModelCallback(fname='best'))
    learn.fit(1)
    file,best = learn.path/'models'/'best.pth', learn.save_model.best
    file.unlink()
    for _ in range(2): learn.validate()
    make('clf').validate(cbs=SaveModelCallback(fname='best'))
    assert learn.save_model.best == best and not file.exists()
    learn.fit(1)
    assert file.exists()

def test_callbacks_after_a_search_that_was_broken_off(make):
    learn = make('clf', cbs=[Stop('after_batch'), SaveModelCallback(fname='best'), EarlyStoppingCallback(min_delta=9, patience=1)])
    with pytest.raises(KeyboardInterrupt): learn.lr_find(show_plot=False)
    learn.stop.on = False
    learn.fit(6)
    assert (learn.path/'models'/'best.pth').exists() and len(learn.recorder.values) == 2

def test_samples_stay_out_of_predictions(make):
    "`get_preds` keeps the record of the last fit beside a callback that adds to it; and needs no fit before it"
    learn = make('lm', cbs=SampleText('the film', n_words=2))
    learn.get_preds()
    learn.fit(1)
    rows = [list(o) for o in learn.recorder.values]
    for _ in range(3): learn.get_preds()
    assert [list(o) for o in learn.recorder.values] == rows and len(rows[0])
    learn.validate()
    learn.fit(1)
    assert len(learn.recorder.values[0]) == len(rows[0])

def test_spared_decay_before_there_is_an_optimizer(make):
    learn = make('clf', cbs=SpareDecay())
    learn.validate()
    learn.fit(1)
    learn.export('s.pkl')
    load_learner(learn.path/'s.pkl')

def pairs(times):
    words = [''.join(random.Random(i).choices('abcd', k=4+i%6)) for i in range(60)]
    df = pd.DataFrame(dict(a=words, b=[w[::-1]*times for w in words]))
    return Seq2SeqDataLoaders.from_df(df, tok_tfm=CharTokenizer(), seed=0, bs=8)

def test_how_long_a_text_may_be_follows_the_data(tmp_path):
    "A fit on pairs with longer targets lets the texts be as long as those; shorter ones later do not cut them"
    learn = quiet(transformer_seq2seq_learner(pairs(1), path=tmp_path, **SMALL))
    short,usual = learn.dls,learn.ratio
    learn.dls = pairs(9)
    learn.fit(1)
    assert learn.ratio == transformer_seq2seq_learner(pairs(9), **SMALL).ratio > 4*usual
    longest = learn.ratio
    learn.dls = short
    learn.fit(1)
    assert learn.ratio == longest
    learn.ratio = 0.5
    learn.fit(1)
    assert learn.ratio == 0.5

def test_a_loss_that_is_put_in_later(df, make):
    "A loss that would compare each number with all of its batch is refused by a fit, as by the factory"
    learn = make('reg')
    learn.loss_func = nn.L1Loss()
    before = weights(learn)
    with pytest.raises(ValueError, match='L1LossFlat'): learn.fit(1)
    assert not changed(learn, before)

class Flat(TransformerClassifier):
    "One number for each text, `(bs,)`"
    def forward(self, x): return super().forward(x)[...,0]

def test_losses_of_models_of_ones_own(df, dls_reg, make):
    "What is not known to compare each number with the others is trained: other outputs, targets that a callback changes, loaders that are no fastai sets"
    learn = quiet(transformer_classifier_learner(dls_reg, arch=Flat, loss_func=nn.MSELoss(), **SMALL))
    learn.fit(1)
    learn = make('reg')
    learn.loss_func = nn.L1Loss()
    class Column(Callback):
        def before_batch(self): self.learn.yb = (self.y[:,None],)
    learn.fit(1, cbs=Column())
    two = make_dls(df.assign(more=df.score), label_col=['score','more'], y_block=RegressionBlock())
    learn = quiet(transformer_classifier_learner(two, loss_func=nn.MSELoss(), **SMALL))
    learn.dls = DataLoaders(DataLoader([*two.train_ds], bs=1), two.valid)
    learn.fit(1)

def test_the_cell_run_again(make):
    "A callback that has seen fits says how to go on in the same session"
    resume = ResumeCallback('r', every=1)
    learn = make('clf', cbs=resume)
    learn.fit(1)
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Stop('after_batch'))
    with pytest.raises(ValueError, match='another run.*repeat that one with a new ResumeCallback'): learn.fit(3)
