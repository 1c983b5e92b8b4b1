"What only language models do in a learner: predictions that fit into memory, the likelihood of a text, samples in the fit's table"
import math, numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from fastai.callback.schedule import LRFinder
from fastai.text.all import Callback, CancelEpochException, CSVLogger, CrossEntropyLossFlat, Learner, SaveModelCallback, accuracy, set_seed
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.codec import decode_ids, encode_text
from fastai_txf.generate.decode import generate
from fastai_txf.learn.writing import predict, text_logprobs
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.tokens import CharTokenizer
from fastai_txf.learn import writing
from fastai_txf.model.models import TransformerMLM
from fastai_txf.learn.writing import SampleText
from fixtures import *

# Predictions

@pytest.mark.parametrize('ds_idx', [0,1])
def test_get_preds(make, ds_idx):
    "A log-probability for each target, stream by stream, and nothing as large as the vocabulary"
    learn = make('lm')
    learn.fit(1)
    logp,targs = learn.get_preds(ds_idx=ds_idx)
    dl = learn.dls[ds_idx].new(shuffle=False, drop_last=False)
    assert logp.shape == targs.shape == (dl.bs, dl.bl) and dl.last_len not in (0,dl.seq_len)
    learn.model.eval()
    with torch.no_grad(): want = [(learn.model(x).log_softmax(-1).gather(-1, y[...,None])[...,0].cpu(),y.cpu()) for x,y in dl] if ds_idx else None
    if want:
        assert torch.allclose(logp, torch.cat([w for w,_ in want], 1), atol=1e-5)
        assert torch.equal(targs, torch.cat([y for _,y in want], 1))

def test_get_preds_extras(make):
    "Inputs come first and losses last; the inputs are the targets one step before"
    learn = make('lm')
    x,logp,targs,loss = learn.get_preds(with_input=True, with_loss=True)
    assert x.shape == targs.shape and torch.equal(x[:,1:], targs[:,:-1]) and torch.allclose(loss, -logp.mean(1))
    with pytest.raises(TypeError, match='with_decoded.*learn.top_losses'): learn.get_preds(with_decoded=True)
    assert len(learn.get_preds(dl=learn.dls.train)[0]) == learn.dls.train.bs

def test_class_weights(make):
    "The loss is the mean over all targets by their weights, however they come in batches"
    n = len(make('lm').dls.vocab)
    w = torch.linspace(0.1, 9, n)
    learn = make('lm', loss_func=CrossEntropyLossFlat(weight=w))
    loss,total,count = learn.validate()[0], 0, 0
    for x,y in learn.dls.valid:
        x,y = (o.as_subclass(torch.Tensor) for o in (x,y))
        with torch.no_grad(): logits = learn.model.eval()(x)
        total += F.cross_entropy(logits.flatten(0, 1), y.flatten(), weight=w, reduction='sum').item()
        count += w[y].sum().item()
    assert loss == pytest.approx(total/count, rel=1e-5)

# Likelihood

def test_perplexity(make):
    "The exponential of the mean negative log-probability, for one text, several and a frame"
    learn = make('lm', p=0., emb_p=0.)
    learn.fit_one_cycle(8, 1e-2)
    lp = learn.text_logprobs('music warm film')
    ids = torch.tensor([[learn.dls.vocab.index(t) for t in 'xxbos music warm film'.split()]])
    want = learn.model.eval().cpu()(ids)[:,:-1].log_softmax(-1).gather(-1, ids[:,1:,None])[0,:,0].tolist()
    assert list(lp.token) == 'music warm film'.split() and np.allclose(lp.logprob, want, atol=1e-5)
    one = learn.perplexity('music warm film')
    assert one == pytest.approx(math.exp(-np.mean(want)), rel=1e-4)
    assert learn.perplexity(['music warm film']*2) == [one]*2 == learn.perplexity(pd.DataFrame(dict(t=['music warm film']*2)), text_col='t')
    for bad,error in (([],ValueError), (None,TypeError), ([None],TypeError)):
        with pytest.raises(error): learn.perplexity(bad)

def test_logprobs_of_one_text(make):
    "A list would be read as the tokens of one text"
    with pytest.raises(TypeError, match='is a list: give one str .`perplexity` takes lists'): make('lm').text_logprobs(['music warm film'])

def test_several_columns(df, make, capsys):
    "A row is read with its marks, as `predict` reads it, in a stream and for its perplexity, too"
    df = df.assign(title=df.label)
    learn = make('lm', dls=make_dls(df, text_col=['title','text'], is_lm=True, seq_len=16, mark_fields=True))
    row,marked = df.iloc[3], f'xxfld 1 {df.title[3]} xxfld 2 {df.text[3]}'
    assert learn.perplexity(row) == pytest.approx(math.exp(-learn.text_logprobs(marked).logprob.mean()), rel=1e-5)
    assert learn.perplexity(df[3:5])[0] == learn.perplexity(dict(row)) == learn.perplexity([row])[0] == learn.perplexity(row)
    want = learn.predict(row, 3, seed=1)
    assert learn.predict(row, 3, seed=1, stream=True) == want and capsys.readouterr().out == want + '\n'
    assert want.startswith(f'{df.title[3]} {df.text[3]} ') and learn.predict(df[3:4], 3, seed=1, stream=True) == [want]

def test_long_text(make):
    "A text of many times `max_len` tokens is read whole"
    for positions in ('rotary','learned'):
        learn = make('lm', max_len=16, positions=positions)
        lp = learn.text_logprobs('a warm film '*100)
        assert len(lp) == 300 and np.isfinite(lp.logprob).all()

def test_plain_learner(make, dls_lm):
    "The free functions serve any learner"
    model = make('lm').model
    learn = Learner(dls_lm, model, loss_func=CrossEntropyLossFlat())
    assert len(text_logprobs(learn, 'a warm film')) == 3

# Samples in the table

def rows(learn):
    "What the fit logs"
    res = []
    learn.logger = lambda row: res.append(list(row))
    return res

def test_sample_text(df, make):
    "A column of text in the table and in the CSV; the record keeps numbers alone; training is the same with and without"
    cb = SampleText('a warm', n_words=3, temperature=0.5)
    def fit(cbs):
        set_seed(1)
        learn = make('lm', dls=make_dls(df, is_lm=True, seq_len=16), metrics=accuracy)
        log = rows(learn)
        learn.fit_one_cycle(2, 1e-3, cbs=cbs)
        return learn,log
    (a,log),(b,_) = fit(cb),fit(None)
    assert [len(r) for r in log] == [6,6] and all(r[-2].startswith('a warm ') for r in log)
    assert log[1][-2] == predict(a, 'a warm', n_words=3, temperature=0.5, seed=0)
    assert [len(v) for v in a.recorder.values] == [3,3] and np.allclose(np.array(a.recorder.values, dtype=float), np.array(b.recorder.values, dtype=float))
    assert list(a.recorder.metric_names) == list(b.recorder.metric_names) == ['epoch','train_loss','valid_loss','accuracy','time']
    assert all(torch.equal(p, q) for p,q in zip(a.model.parameters(), b.model.parameters()))

def test_sample_text_beside_others(make, tmp_path):
    "With the callbacks that read the record or the log"
    learn = make('lm', metrics=accuracy)
    learn.fit(2, cbs=[SampleText(n_words=2), SaveModelCallback('valid_loss', fname='best'), CSVLogger()])
    table = pd.read_csv(learn.path/'history.csv')
    assert list(table.columns) == ['epoch','train_loss','valid_loss','accuracy','sample','time'] and len(table) == 2
    assert (learn.path/learn.model_dir/'best.pth').exists()
    learn.add_cb(SampleText())
    learn.lr_find(num_it=3, show_plot=False)
    assert len(learn.validate()) == 2 and len(learn.get_preds()) == 2

def test_sample_text_in_fits_alone(make, monkeypatch):
    "A validation and a search for a rate, by whatever name, write nothing"
    learn,asked = make('lm', cbs=SampleText('a warm', n_words=2)), []
    monkeypatch.setattr(writing, 'predict', lambda *args,**kwargs: asked.append(kwargs) or 'a warm film')
    class Finder(LRFinder): "A search by another name"
    learn.validate(); learn.get_preds(); learn.lr_find(num_it=6, show_plot=False); learn.fit(2, cbs=Finder(num_it=6))
    assert not asked
    learn.fit(1)
    assert len(asked) == 2

def test_sample_text_where_an_epoch_is_left_out(make):
    "Without a validation there is no text, and the record keeps its numbers"
    class Cuts(Callback):
        def after_train(self):
            if self.epoch == 1: raise CancelEpochException()
    learn = make('lm')
    log = rows(learn)
    learn.fit(3, 1e-3, start_epoch=1, cbs=[SampleText('a warm', 2), Cuts()])
    assert [len(o) for o in learn.recorder.values] == [0,0,2]
    assert [len(o) for o in log] == [2,2,5] and log[2][-2].startswith('a warm')

@pytest.mark.parametrize('asks', [lambda o: o.validate(), lambda o: o.get_preds(), lambda o: o.get_preds(inner=True)], ids=['validate','get_preds','inner'])
def test_sample_text_beside_a_validation_within_the_fit(make, asks):
    "Each row has one text, the record none, and the validation measures numbers alone"
    class Asks(Callback):
        def after_train(self): asked.append(asks(self.learn))
    learn,asked = make('lm'), []
    log = rows(learn)
    learn.fit(2, 1e-3, cbs=[SampleText('a warm', 2), Asks()])
    assert [len(o) for o in learn.recorder.values] == [2,2] and [len(o) for o in log] == [5,5] and all(o[-2].startswith('a warm') for o in log)
    assert not any(isinstance(v, str) for o in asked for v in o) and list(learn.recorder.metric_names) == ['epoch','train_loss','valid_loss','time']

def test_sample_text_options():
    "A misspelt option is refused when the callback is made"
    with pytest.raises(TypeError, match='temprature'): SampleText('a', temprature=1.)

def test_sample_text_of_a_beam_search(make):
    "It has no seed, unless it is given one, which is refused"
    learn = make('lm')
    log = rows(learn)
    learn.fit(1, cbs=SampleText('a warm', 2, num_beams=2))
    assert log[0][-2] == learn.predict('a warm', 2, num_beams=2)
    with pytest.raises(ValueError, match='leave out seed=0'): learn.fit(1, cbs=SampleText('a warm', 2, num_beams=2, seed=0))

# What stands between prompt and answer

@pytest.mark.parametrize('prompt', ['def f(x):\n', 'def f(x):\n  ', 'def f'])
def test_spaces_after_a_prompt(prompt, tmp_path):
    "Code keeps its indentation: prompt and new text together are what the ids say, in a stream too"
    dls = LMDataLoaders.from_texts(['def f(x):\n    return x\n']*40, tok_tfm=CharTokenizer(), bs=4, seq_len=16)
    learn = quiet(transformer_lm_learner(dls, **SMALL, path=tmp_path))
    learn.fit(20, 1e-2)
    ids = encode_text(learn, prompt)
    want = decode_ids(learn, generate(learn.model, ids[None], 12, temperature=0)[0])
    assert 'def f(x):\n    r' in want                                       # it has learned that
    assert learn.predict(prompt, n_tokens=12, temperature=0) == want
    assert prompt + ''.join(learn.stream_text(prompt, n_tokens=12, temperature=0)) == want

def test_backwards(df, tmp_path):
    "A model that writes from right to left goes on with nothing"
    dls = TransformerDataLoaders.from_df(df, text_col='text', is_lm=True, valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=4, seq_len=16, backwards=True, num_workers=0)
    learn = quiet(transformer_lm_learner(dls, **SMALL, path=tmp_path))
    for f in (learn.predict, learn.stream_text):
        with pytest.raises(ValueError, match='backwards=True'): f('the film')

@pytest.mark.parametrize('k', ['temperature','n_samples','num_beams','length_penalty'])
def test_no_option_is_none(make, k):
    with pytest.raises(ValueError, match=f'{k}=None'): make('lm').predict('the film', **{k:None})

@pytest.mark.parametrize('asked', ['field','config','pretrained'])
def test_no_model_sees_what_it_predicts(dls_lm, asked):
    "A masked model's configuration shows the next token: the loss fell to nothing"
    masked = TransformerMLM(vocab_sz=len(dls_lm.vocab), d_model=16, n_heads=2, n_layers=1)
    masked.vocab = dls_lm.vocab
    kw = dict(field=dict(d_model=16, causal=False), config=dict(config=masked.config), pretrained=dict(pretrained=masked))[asked]
    with pytest.raises(ValueError, match='give causal=True'): transformer_lm_learner(dls_lm, **kw)
    assert transformer_lm_learner(dls_lm, **{**kw, 'causal':True}).model.config.causal
