"Masked language models: what is hidden, what counts, what moves into a classifier"
import inspect, io, math, subprocess, sys
import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from functools import partial
from torch.nn.utils.rnn import pad_sequence
from hypothesis import given, strategies as st
from fastai.text.all import BaseTokenizer, CategoryBlock, ColReader, ColSplitter, Counter, DataBlock, GradientAccumulation, Perplexity, TextBlock, accuracy, defaults, load_learner, make_vocab
from fastai_txf.text.special import text_vocab
from fastai_txf.text.codec import text_tokenizer
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.generate.decode import generate
from fastai_txf.learn.writing import predict, stream_text, text_logprobs
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.model.models import TransformerMLM
from fastai_txf.text.special import mask_index, ordinary_tokens
from fastai_txf.text.plain import cut_gaps
from fastai_txf.learn.mlm import fixed_draws, mask_tokens, MaskTokens, transformer_mlm_learner
from fastai_txf.model.windows import compact
from fastai_txf.model.config import TransformerConfig
from fastai_txf.text.pairs import Seq2SeqDataLoaders
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.tokens import BPETokenizer, CharTokenizer
from fastai_txf.learn.writing import SampleText
from fixtures import *

N,MASK,FIRST = 50,49,9 # tokens, the mask, the first ordinary one
ordinary = torch.tensor([FIRST <= i < 40 for i in range(N)])

def mlm(dls, tmp_path, **kw): return quiet(transformer_mlm_learner(dls, **{**SMALL, 'path':tmp_path, **kw}))

@pytest.fixture
def of(request, tmp_path):
    "`of(kind, **options)`: a small masked language model on loaders for classification ('clf') or a language model ('lm')"
    return lambda kind='clf', **kw: mlm(request.getfixturevalue(dict(clf='dls', lm='dls_lm')[kind]), tmp_path, **kw)

# What is hidden

def explicit(x, u, p, p_mask, p_random):
    "`mask_tokens` one token at a time"
    seen,where = x.clone(), torch.zeros_like(x, dtype=torch.bool)
    drawn = [i for i in range(N) if ordinary[i]]
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            if not ordinary[x[b,i]] or u[0,b,i] >= p: continue
            where[b,i] = True
            if u[1,b,i] < p_mask: seen[b,i] = MASK
            elif u[1,b,i] < p_mask+p_random: seen[b,i] = drawn[int(u[2,b,i]*len(drawn))]
    return seen, where

@pytest.mark.parametrize('p,p_mask,p_random', [(0.15,0.8,0.1), (0.5,0.5,0.5), (1.,0.,1.), (0.3,1.,0.), (0.3,0.,0.)])
def test_masking_against_a_loop(p, p_mask, p_random):
    x,u = torch.randint(N, (6,30)), torch.rand(3, 6, 30)
    for a,b in zip(mask_tokens(x, u, ordinary, MASK, p, p_mask, p_random), explicit(x, u, p, p_mask, p_random)): assert a.equal(b)

@given(st.integers(0, 2**32-1), st.floats(0.01, 1), st.floats(0, 1))
def test_masking_properties(seed, p, p_mask):
    "Only ordinary tokens are chosen, only chosen ones change, and into nothing but the mask or an ordinary token"
    g = torch.Generator().manual_seed(seed)
    x,u = torch.randint(N, (4,20), generator=g), torch.rand(3, 4, 20, generator=g)
    seen,where = mask_tokens(x, u, ordinary, MASK, p, p_mask, (1-p_mask)/2)
    assert ordinary[x[where]].all() and seen[~where].equal(x[~where])
    assert (ordinary | (torch.arange(N) == MASK))[seen[where]].all()

def share_is(hits, n, want):
    "A two-sided test of a share, at five standard errors"
    return abs(hits/n - want) <= 5*math.sqrt(want*(1-want)/n)

@pytest.mark.parametrize('p,p_mask,p_random', [(0.15,0.8,0.1), (0.4,0.5,0.3)])
def test_frequencies(p, p_mask, p_random):
    "As often as asked for, in training and in validation; the replacements are drawn evenly"
    cb = MaskTokens(ordinary, MASK, 1, p, p_mask, p_random)
    x = torch.randint(FIRST, 40, (400, 200))
    for training in (True, False):
        seen,where = cb.hide(x, training)
        n,changed = where.sum().item(), where & (seen != x) & (seen != MASK)
        assert share_is(n, x.numel(), p)
        assert share_is((seen == MASK).sum().item(), n, p_mask)
        n_drawn = ordinary.sum().item()
        assert share_is(changed.sum().item(), n, p_random*(1-1/n_drawn))    # one in `n_drawn` is the token itself
        counts = torch.bincount(seen[changed], minlength=N)[FIRST:40].double()
        chi2 = ((counts-counts.mean())**2/counts.mean()).sum().item()
        assert chi2 < n_drawn-1 + 5*math.sqrt(2*(n_drawn-1))                # mean and standard deviation of the distribution

@pytest.mark.parametrize('kind', ['clf','lm'])
def test_never_special(of, kind):
    "In real batches: never padding, never a special token, and each batch different"
    learn = of(kind, mask_p=1.)
    special = {i for i,t in enumerate(text_vocab(learn.dls)) if t in defaults.text_spec_tok or t == 'xxfake'}
    for b in list(learn.dls.train)[:4]:
        x,_ = compact(b[0], 1)
        seen,where = learn.mask_tokens.hide(x, training=True)
        assert not special & set(x[where].tolist()) and set(x[~where].tolist()) <= special
        assert (seen != 1).sum() == (x != 1).sum()
        assert not learn.mask_tokens.hide(x, training=True)[0].equal(seen)

# Always the same in validation

def test_draws_of_a_text_alone():
    x = torch.randint(2, 20, (5, 30))
    for i,n in enumerate([30,3,0,12,1]): x[i,n:] = 1
    u = fixed_draws(x)
    for i,n in enumerate([30,3,0,12,1]):
        assert fixed_draws(x[i:i+1,:max(1, n)])[:,0,:n].equal(u[:,i,:n])
        assert fixed_draws(F.pad(x, (0,7), value=1))[:,i,:n].equal(u[:,i,:n])
    assert (u >= 0).all() and (u < 1).all() and not fixed_draws(x, seed=1)[:,0].equal(u[:,0])

@pytest.mark.parametrize('kind', ['clf','lm'])
def test_validation_is_fixed(of, kind, df):
    "The same loss again, whatever was drawn between, and in batches of another size; training masks are new"
    learn = of(kind, metrics=accuracy)
    first = learn.validate()
    torch.rand(10)
    assert learn.validate() == first
    if kind == 'clf':
        other = mlm(make_dls(df, bs=3), learn.path, metrics=accuracy)
        other.model.load_state_dict(learn.model.state_dict())
        np.testing.assert_allclose(other.validate(), first, rtol=1e-5)
    x,_ = compact(next(iter(learn.dls.valid))[0])
    assert not of(kind, seed=7).mask_tokens.hide(x)[0].equal(learn.mask_tokens.hide(x)[0])

# What counts

@pytest.mark.parametrize('kind', ['clf','lm'])
def test_loss_against_a_loop(of, kind):
    "The mean over the hidden tokens of all validation texts, from full logits, one text at a time"
    learn = of(kind, metrics=[accuracy, Perplexity()])
    loss,acc,ppl = learn.validate()
    losses,hits,hide = [], [], learn.mask_tokens
    learn.model.eval()
    for b in learn.dls.valid:
        for row in b[0].as_subclass(torch.Tensor):
            x = row[row != 1][None]
            seen,where = hide.hide(x)
            with torch.no_grad(): logits = learn.model.head(learn.model.encoder(seen))
            for i in where[0].nonzero()[:,0]:
                losses.append(-logits[0,i].log_softmax(0)[x[0,i]].item())
                hits.append((logits[0,i].argmax() == x[0,i]).item())
    assert loss == pytest.approx(np.mean(losses), rel=1e-5) and acc == pytest.approx(np.mean(hits)) and ppl == pytest.approx(math.exp(loss), rel=1e-5)
    logp,targs = learn.get_preds()
    assert len(logp) == len(losses) and -logp.mean().item() == pytest.approx(loss, rel=1e-5)

def test_no_logits_of_others(of):
    "The head is called on the hidden tokens only"
    learn,seen = of(), []
    learn.model.head.register_forward_hook(lambda m, args, out: seen.append(args[0].shape))
    learn.validate()
    n_tokens = sum((b[0] != 1).sum().item() for b in learn.dls.valid)
    assert all(len(s) == 2 for s in seen) and 0 < sum(s[0] for s in seen) < n_tokens/3

def test_nothing_hidden(df, tmp_path):
    "A batch of empty texts is passed over"
    df = pd.concat([df, pd.DataFrame(dict(text=['']*8, label='pos', is_valid=True))])
    learn = mlm(make_dls(df, val_bs=4), tmp_path, metrics=accuracy)
    assert all(map(math.isfinite, learn.validate())) and torch.isfinite(learn.get_preds()[0]).all()
    learn.fit(1)

def test_preds_in_the_order_of_the_data(of):
    "Text by text, each as it is alone; nothing for a text of which nothing is hidden"
    learn = of()
    texts = ['', 'the film was with music '*5, 'it', 'warm acting of the story '*9, 'film', 'clever and lovely music in it']
    alone = [learn.get_preds(dl=learn.dls.test_dl([t])) for t in texts]
    for got,want in zip(learn.get_preds(dl=learn.dls.test_dl(texts, bs=2)), map(torch.cat, zip(*alone))): torch.testing.assert_close(got, want)
    shapes = [(logp.shape,targs.shape) for logp,targs in alone]
    assert shapes[0] == ((0,),(0,)) and all(len(a) == 1 and a == b for a,b in shapes) and sum(a[0] for a,_ in shapes) > 5

def test_preds_of_streams(of):
    "A row of text after the other, as the loaders of a language model cut them"
    learn = of('lm')
    hidden = [[row[w] for row,w in zip(x, learn.mask_tokens.hide(x)[1])] for x,_ in learn.dls.valid.new(shuffle=False, drop_last=False)]
    assert len(hidden) > 1 and learn.get_preds()[1].equal(torch.cat([o for stream in zip(*hidden) for o in stream]))

def test_no_loss_where_nothing_is_hidden(of):
    learn = of()
    with pytest.raises(ValueError, match='nothing was hidden in these texts.*0.15'): learn.validate(dl=learn.dls.test_dl(['']))
    with pytest.raises(ValueError, match='not one batch'): learn.validate(dl=learn.dls.test_dl([''], bs=4, drop_last=True))

@pytest.mark.parametrize('kw', [{}, dict(is_lm=True, seq_len=16)])
def test_learns_from_the_context(kw, tmp_path):
    "Six words in a circle: better than the best guess without context"
    df = pd.DataFrame(dict(text='one two three four five six '*8, label=['a','b']*40, is_valid=[False]*64+[True]*16))
    learn = mlm(make_dls(df, **kw), tmp_path, positions='conv', n_layers=1, p=0., emb_p=0.)
    assert learn.validate()[0] > math.log(6)
    learn.fit_one_cycle(6, 2e-2)
    assert len(learn.recorder.values) == 6 and learn.validate()[0] < 0.8*math.log(6)

def test_the_model_reads_padding_and_long_texts():
    model = TransformerMLM(vocab_sz=N, max_len=8, **SMALL).eval()
    x = torch.randint(FIRST, 40, (3, 30)); x[0,10:] = 1
    torch.testing.assert_close(model(F.pad(x, (6,2), value=1)), model(x))
    torch.testing.assert_close(model(x[:1,:10]), model(x)[:1,:10])
    where = torch.rand(3, 30) < 0.3
    torch.testing.assert_close(model(x, where), model(x)[where])
    assert model.head.weight is model.encoder.emb.weight and not model.config.causal and model.config.scale_emb
    y = x.clone(); y[1,-1] = (x[1,-1]+1-FIRST) % 30 + FIRST
    assert not torch.allclose(model(y)[1,-2], model(x)[1,-2])               # the future is seen

# The mask token

def test_mask_token():
    vocab = make_vocab(Counter('a b c a b c a b c'.split()))
    assert mask_index(vocab) == len(vocab)-1 and vocab[-1] == 'xxfake' and mask_index(vocab+['xxmask','e']) == len(vocab)
    assert mask_index(vocab, 'xxunk') == 0 and mask_index(['[MASK]','xxfake']) == 0
    assert ordinary_tokens(vocab+['<mask>'], 'c').nonzero()[:,0].tolist() == [vocab.index('a'), vocab.index('b')]
    with pytest.raises(ValueError, match='vocabulary of 2 tokens.*mask_tok='): mask_index(['a','b'])
    with pytest.raises(ValueError, match="'xxgap' is not"): mask_index(vocab, 'xxgap')

def test_no_text_holds_the_mask(dls, dls_lm):
    "`xxfake` stands for nothing else"
    for d in (dls, dls_lm):
        for b in [*d.train, *d.valid]: assert not (b[0] == mask_index(d)).any()

def test_a_vocabulary_without_xxfake(df, tmp_path):
    vocab = ['xxunk','xxpad','xxbos','the','film','was','and']
    dls = make_dls(df, text_vocab=vocab)
    with pytest.raises(ValueError, match='add xxmask'): mlm(dls, tmp_path)
    assert mlm(dls, tmp_path, mask_tok='xxunk').mask_tokens.mask_idx == 0
    assert mlm(make_dls(df, text_vocab=vocab+['xxmask']), tmp_path).mask_tokens.mask_idx == 7

# Filling gaps

def test_fill_against_the_model(of):
    learn = of()
    vocab = text_vocab(learn.dls)
    learn.model.train()
    res = learn.fill('the ___ film', n=3)
    assert learn.model.training
    x = torch.tensor([[vocab.index(t) for t in ('xxbos','the','xxfake','film')]])
    x[0,2] = mask_index(vocab)
    learn.model.eval()
    logits = learn.model(x)[0,2].detach().masked_fill(~learn.mask_tokens.ordinary, -math.inf)
    probs,ids = logits.softmax(0).topk(3)
    assert res.token.tolist() == [vocab[i] for i in ids] and res.gap.tolist() == [0]*3
    np.testing.assert_allclose(res.prob, probs, rtol=1e-4)
    assert res.text[1] == f'the {res.token[1]} film'

@pytest.mark.parametrize('gap', ['___', 'xxmask', '[MASK]', '<mask>', '_____'])
def test_ways_to_write_a_gap(of, gap):
    learn = of(p=0., emb_p=0.)
    assert learn.fill(f'the {gap} film').equals(learn.fill('the ___ film'))

def test_fill_several(of):
    learn = of()
    res = learn.fill('___ and ___ ___ ___', n=2)
    assert res.gap.tolist() == [0,0,1,1,2,2,3,3]
    best = res.groupby('gap').token.first()
    assert res.text[0] == f'{best[0]} and {best[1]} {best[2]} {best[3]}'
    many = learn.predict(['the ___', '___ film'], n=1)
    assert [r.shape for r in many] == [(1,4)]*2 and many[1].equals(learn.fill('___ film', n=1))
    assert learn.fill(pd.DataFrame(dict(t=['a ___'])), text_col='t')[0].shape == (5,4)
    assert len(learn.fill('___', n=10**6)) == learn.mask_tokens.ordinary.sum()
    assert len(learn.fill('film '*700 + '___')) == 5                        # longer than max_len
    assert [t.count('xxbos') for t in cut_gaps(learn.codec, 'a ___ b ___ c')[1]] == [1,0,0]

def test_fill_several_columns(df, tmp_path):
    "A row is read with its marks, as a text that has them"
    df = df.assign(title=df.label)
    learn = mlm(make_dls(df, text_col=['title','text'], label_col='tags', mark_fields=True), tmp_path)
    row,seen = dict(title='pos', text='a ___ film'), []
    learn.model.encoder.register_forward_hook(lambda m, args, out: seen.append(args[0][0].tolist()))
    got = learn.fill(row)
    assert got.equals(learn.fill('xxfld 1 pos xxfld 2 a ___ film')) and got.equals(learn.fill(pd.DataFrame([row]))[0])
    ids,vocab = learn.codec.prompts({**row, 'text':'a xxfake film'})[0].tolist(), text_vocab(learn.dls)
    assert len(seen[0]) == len(ids) and [i for i in seen[0] if i != learn.mask_tokens.mask_idx] == [i for i in ids if vocab[i] not in ('xxunk','xxfake')]

@pytest.mark.parametrize('text,error,words', [('no gap', ValueError, "'no gap' has no gap: write ___"), ([], ValueError, 'no text'), (3, TypeError, '3 is a int'), ([None], TypeError, 'number 0 is None')])
def test_nothing_to_fill(of, text, error, words):
    with pytest.raises(error, match=words): of().fill(text)
    for n in (0, 2.5, None, '3'):
        with pytest.raises(ValueError, match=f'n={n!r}: at least 1 guess'): of().fill('a ___', n=n)

@pytest.mark.parametrize('tok', [CharTokenizer, partial(BPETokenizer, vocab_sz=300)])
def test_fill_characters_and_byte_pairs(df, tmp_path, tok):
    "What is put together is the text that was given"
    block = TextBlock.from_df('text', tok=tok(), rules=[], n_workers=0)
    dls = DataBlock((block, CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=ColSplitter()).dataloaders(df, bs=8, num_workers=0)
    learn = mlm(dls, tmp_path)
    res = learn.fill('the f___m was', n=4)
    assert all(t == f'the f{w}m was' for t,w in zip(res.text, res.token))
    pieces,toks = cut_gaps(learn.codec, 'the ___ was')
    assert pieces == ['the ',' was'] and toks[0][:1] != ['xxbos']
    assert [text_tokenizer(dls).tok.detokenize(t) for t in toks] == ['the ' if tok is CharTokenizer else 'the', ' was']
    res = learn.fill('the ___ was', n=4)
    assert all(t == f'the {w.lstrip() if w.strip() else w} was' for t,w in zip(res.text, res.token))

def test_fill_behind_a_start(df, tmp_path):
    "Where loaders put xxbos in front of each text, the gap is still the token that is hidden"
    dls = LMDataLoaders.from_df(df.assign(is_valid=df.index % 5 == 0), text_col='text', valid_col='is_valid', tok_tfm=CharTokenizer(), bs=4, seq_len=8)
    learn,seen = mlm(dls, tmp_path),[]
    learn.model.encoder.register_forward_hook(lambda m, args, out: seen.append(args[0][0].tolist()))
    learn.fill('fil___ad')
    gap = learn.mask_tokens.mask_idx
    assert [dls.vocab[i] if i != gap else '_' for i in seen[0]] == ['xxbos',*'fil_ad']

def test_fill_backwards(df, tmp_path):
    "Loaders that turn texts around: the gap is where the text has it"
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=8, num_workers=0, backwards=True)
    learn,seen = mlm(dls, tmp_path),[]
    learn.model.encoder.register_forward_hook(lambda m, args, out: seen.append(args[0][0].tolist()))
    learn.fill('the ___ film was fine')
    gap = learn.mask_tokens.mask_idx
    assert [text_vocab(dls)[i] if i != gap else '_' for i in seen[0]] == ['fine','was','film','_','the','xxbos']

def test_gaps_backwards(df, tmp_path):
    "Each gap gets the guesses for its own place"
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=8, num_workers=0, backwards=True)
    learn = mlm(dls, tmp_path)
    hide,vocab = learn.mask_tokens, text_vocab(dls)
    res = learn.fill('the ___ was ___', n=1)
    ids = [hide.mask_idx if t is None else vocab.index(t) for t in (None,'was',None,'the','xxbos')]
    with torch.no_grad(): logits = learn.model.eval()(torch.tensor([ids], device=next(learn.model.parameters()).device))[0].cpu()
    logits[:,~hide.ordinary] = -float('inf')
    assert res.token.tolist() == [vocab[int(logits[i].argmax())] for i in (2, 0)]

def test_two_underscores_are_no_gap(of):
    with pytest.raises(ValueError, match='has no gap'): of().fill('the __init__ film')

# As a learner

def test_into_a_classifier_and_back(of, make):
    "Weights arrive exactly, but for the scale of the embeddings, which goes into them"
    learn = of()
    learn.fit(1)
    learn.save_encoder('enc')
    known = ordinary_tokens(learn.dls) | (torch.arange(len(text_vocab(learn.dls))) < 9)
    for clf,scale in [(make(pretrained='enc'), 4.), (make(pretrained='enc', scale_emb=True), 1.)]:
        mine,theirs = clf.model.cpu().encoder.state_dict(), learn.model.cpu().encoder.state_dict()
        for k in mine: assert mine[k].equal(theirs[k]) or k == 'emb.weight' and mine[k][known].equal(theirs[k][known]*scale)
        x = torch.tensor([[2,9,10,11,12]])
        torch.testing.assert_close(clf.model.eval().encoder(x), learn.model.eval().encoder(x), atol=1e-5, rtol=1e-5)
        assert clf.opt.frozen_idx == len(clf.opt.param_lists)-1
    clf.save_encoder('back'); of().load_encoder('back')

def test_the_mask_moves_to_another_vocabulary(of, df, tmp_path):
    learn = of()
    learn.save_encoder('enc')
    other = mlm(make_dls(df, text_vocab=[*text_vocab(learn.dls)[:20], 'film', 'new', 'xxfake', 'xxfake']), tmp_path)
    other.load_encoder('enc')
    row = lambda o, t: o.model.encoder.emb.weight[t if isinstance(t, int) else text_vocab(o.dls).index(t)]
    assert row(other, other.mask_tokens.mask_idx).equal(row(learn, learn.mask_tokens.mask_idx)) and row(other, 'film').equal(row(learn, 'film'))

def test_from_a_language_model(make, tmp_path, dls):
    "What has learned to go on can learn to fill gaps"
    lm = make('lm', scale_emb=True)
    lm.save_encoder('lm')
    learn = mlm(dls, tmp_path, pretrained='lm')
    assert learn.opt.frozen_idx > 0
    for k,w in lm.model.encoder.blocks.state_dict().items(): assert w.equal(learn.model.encoder.blocks.state_dict()[k])

def test_freeze(of):
    learn = of()
    learn.freeze()
    before = weights(learn)
    learn.fit(1)
    assert changed(learn, before) == {'encoder.emb.weight','encoder.norm.weight','encoder.norm.bias'}
    learn.unfreeze(); learn.fit(1, slice(1e-4,1e-3))
    assert changed(learn, before) == set(before)

def test_export(of, tmp_path):
    "In a fresh process, the same guesses"
    learn = of('lm')
    learn.export('mlm.pkl')
    code = f"from fastai.text.all import load_learner; print(load_learner({str(tmp_path/'mlm.pkl')!r}).fill('the ___ film').to_json())"
    res = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert res.returncode == 0, res.stderr
    pd.testing.assert_frame_equal(pd.read_json(io.StringIO(res.stdout.splitlines()[-1])), learn.fill('the ___ film'), rtol=1e-4)
    with pytest.raises(ValueError, match='not one batch'): load_learner(tmp_path/'mlm.pkl').show_results()

@pytest.mark.parametrize('kind', ['clf','lm'])
def test_show_results(of, kind, monkeypatch):
    "In brackets as many tokens as are hidden, and only there the texts differ from what they were"
    learn,cols = of(kind), {}
    learn.model.train()
    monkeypatch.setattr('fastai_txf.learn.mlm.show_pairs', cols.update)
    learn.show_results(max_n=3, trunc_at=12, shuffle=False)
    assert learn.model.training and list(cols) == ['text','hidden','prediction'] and len(cols['text']) == 3
    vocab,x = text_vocab(learn.dls), next(iter(learn.dls.valid))[0][:3]
    if kind == 'clf': x = pad_sequence([learn.dls.valid_ds[i][0] for i in range(3)], batch_first=True, padding_value=1)
    x,_ = compact(x)
    for ids,text,hidden,guess in zip(x, *cols.values()):
        words = hidden.split()
        assert text.count('[') == len(words) == len(guess.split())
        shown = [words.pop(0) if t[0] == '[' else t for t in text.split()]
        assert shown == [vocab[i] for i in ids[:12] if i != 1]

@pytest.mark.parametrize('kw', [dict(max_n=0), dict(trunc_at=0)])
def test_show_results_of_nothing(of, kw):
    with pytest.raises(ValueError, match='=0 is out of range: .*1 or more'): of('clf').show_results(**kw)

def test_summary_find_bf16(of):
    learn = of('lm')
    assert 'TransformerMLM' in str(learn.summary())
    assert learn.lr_find(num_it=4, show_plot=False).valley > 0
    learn.to_bf16().fit(1)
    assert math.isfinite(learn.recorder.values[-1][1])

# Options

def test_signature():
    sig = inspect.signature(transformer_mlm_learner).parameters
    assert {'d_model','positions','metrics','mask_p','p_mask','p_random','mask_tok','seed'} <= sig.keys()
    assert not {'causal','pool','n_out','kwargs'} & sig.keys()

def test_seq_len(df, tmp_path):
    assert mlm(make_dls(df, is_lm=True, seq_len=600, bs=1), tmp_path).model.config.max_len == 600

@pytest.mark.parametrize('kw,error,words', [(dict(causal=True), TypeError, "'causal'"), (dict(n_haeds=2), TypeError, "'n_heads'"), (dict(pool='max'), TypeError, "'pool'"),
    (dict(mask_p=0), ValueError, 'p=0'), (dict(mask_p=1.2), ValueError, 'p=1.2'), (dict(p_mask=0.9, p_random=0.2), ValueError, 'p_random=0.2'), (dict(p_random=-.1), ValueError, 'p_random=-0.1'), (dict(mask_p='0.2'), ValueError, "mask_p='0.2'"), (dict(p_mask=None), ValueError, 'p_mask=None'),
    (dict(p_mask=math.nan), ValueError, 'p_mask=nan'), (dict(seed='a'), ValueError, "seed='a'"),
    (dict(config=TransformerConfig(causal=True)), ValueError, 'both sides'), (dict(mask_tok='xxgap'), ValueError, 'xxgap')])
def test_wrong_options(of, kw, error, words):
    with pytest.raises(error, match=words): of(**kw)

def test_wrong_loaders(df, dls):
    pairs = Seq2SeqDataLoaders.from_df(df, src_col='text', tgt_col='label', tok_tfm=BaseTokenizer(), valid_pct=0.2, bs=8)
    with pytest.raises(ValueError, match='pairs of texts'): transformer_mlm_learner(pairs)
    with pytest.raises(TypeError, match='no DataLoaders'): transformer_mlm_learner('texts')
    with pytest.raises(ValueError, match='all 3 tokens'): MaskTokens(torch.zeros(3, dtype=torch.bool), 2)
    learn = transformer_mlm_learner(dls, **SMALL)
    with pytest.raises(TypeError, match='with_decoded'): learn.get_preds(with_decoded=True)

def test_tied_heads_keep_their_rows(df, tmp_path):
    "A language model goes on with the embeddings as they are, though masked language models scale theirs: its head shares them"
    dls = LMDataLoaders.from_df(df.assign(is_valid=df.index % 5 == 0), text_col='text', valid_col='is_valid', tok_tfm=CharTokenizer(), bs=4, seq_len=8)
    learn = mlm(dls, tmp_path)
    learn.save_encoder('enc')
    lm = transformer_lm_learner(dls, pretrained='enc', path=tmp_path, **{k:getattr(learn.model.config, k) for k in ('d_model','n_heads','n_layers','max_len')})
    assert lm.model.head.weight.equal(learn.model.head.weight) and lm.model.encoder.config.scale_emb

def test_no_continuation(of):
    "What continues texts refuses a model that does not, before anything is trained"
    learn = of()
    for f in (lambda: predict(learn, 'the film'), lambda: next(stream_text(learn, 'the film')), lambda: text_logprobs(learn, 'the film was'), lambda: generate(learn.model, torch.tensor([[2,9]]), 3), lambda: learn.fit(1, cbs=SampleText('the film'))):
        with pytest.raises(TypeError, match='TransformerMLM predicts what is missing .* use `learn.fill`'): f()
    assert not learn.recorder.losses

def test_accumulation_is_refused(of):
    "fastai's counts targets, which are hidden tokens: it is named before the first epoch, however it is given"
    for learn,cbs in ((of(), GradientAccumulation(8)), (of(), GradientAccumulation), (of(cbs=GradientAccumulation(8)), None)):
        with pytest.raises(ValueError, match='would count hidden tokens.*leave it out.*checkpoint=True'): learn.fit(1, 1e-3, cbs=cbs)
        assert learn.n_steps == 0
