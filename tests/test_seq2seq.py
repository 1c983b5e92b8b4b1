"The encoder–decoder, from its parts to a learner that answers: references, masks, caches, loaders, odd input"
import math, pickle, random, subprocess, sys, warnings
import numpy as np, pandas as pd, pytest, sacrebleu, torch, torch.nn as nn, torch.nn.functional as F
from fastai.text.all import (AccumMetric, accuracy, BalancedAccuracy, BaseTokenizer, Callback, ColReader, ColSplitter, CorpusBLEUMetric, CrossEntropyLossFlat, DataBlock, F1Score, FocalLossFlat, ItemTransform,
                             LabelSmoothingCrossEntropyFlat, Perplexity, SaveModelCallback, TextBlock, TextDataLoaders, load_learner, set_seed)
from fastai.metrics import ActivationType, skm
from types import SimpleNamespace
from hypothesis import example, given, settings, strategies as st
from fastai_txf.model.attention import causal_mask
from fastai_txf.all import *
from fastai_txf.generate.readers import CachedReader, Reader, make_reader
from fastai_txf.share.torch import from_torch
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.model.config import make_config, PRESETS
from fastai_txf.model.stack import TransformerDecoder
from fastai_txf.model.models import seq2seq_splitter, Seq2SeqTransformer, TransformerLM
from fastai_txf.model.positions import POSITIONS, sinusoids
from fastai_txf.text.tokens import BPETokenizer, CharTokenizer
from fastai_txf.train.losses import TokenAccuracy
from fastai_txf.learn.base import codec_of
from fastai_txf.learn.writing import perplexity, SampleText, text_logprobs
from fixtures import changed, close, make_dls, quiet, texts_df, uncompiled, weights
from test_properties import build, configs

torch.set_num_threads(1)
V,PAD_,BOS_,EOS_ = 30,1,2,3
some,few = settings(max_examples=12), settings(max_examples=4)

def text(*shape): return torch.randint(4, V, shape)
def padded(x, front, back): return F.pad(x, (front,back), value=PAD_)

def tiny(**kw):
    "A model in `eval` whose weights are large enough for all of them to matter"
    return build(Seq2SeqTransformer, make_config(**{**dict(vocab_sz=V, d_model=16, n_heads=4, max_len=12), **kw}))

# The model against torch's

@pytest.mark.parametrize('norm_first', [False,True])
@pytest.mark.parametrize('positions,scale_emb', [('sinusoidal',True), ('none',False), ('learned',False)])
def test_model_is_torch(norm_first, positions, scale_emb):
    "Embeddings, positions, `nn.Transformer` with all its masks, and a linear map: the same logits and gradients"
    torch.manual_seed(0)
    ours = tiny(wiring='pre' if norm_first else 'post', ff='relu', positions=positions, scale_emb=scale_emb, tgt_vocab_sz=20, tie=False, p=0., emb_p=0.)
    theirs = nn.Transformer(16, 4, 2, 2, 64, 0., 'relu', batch_first=True, norm_first=norm_first)
    if not norm_first: theirs.encoder.norm = theirs.decoder.norm = None
    for p in theirs.parameters(): p.data += 0.1*torch.randn_like(p)
    same = from_torch(theirs)
    for part in ('encoder','decoder'): getattr(ours, part).blocks,getattr(ours, part).norm = getattr(same, part).blocks,getattr(same, part).norm
    for b in ours.decoder.blocks: b.attn.fn.causal = True
    src,tgt,real = text(2,7),torch.randint(4, 20, (2,5)),torch.tensor([[True]*7, [True]*4+[False]*3])
    src[~real] = PAD_
    def embed(part, x):
        pos = torch.arange(x.shape[1])
        h = part.emb(x)*(4. if scale_emb else 1.)
        return h + (sinusoids(pos, 16) if positions == 'sinusoidal' else part.positions.emb(pos) if positions == 'learned' else 0.)
    out = theirs(embed(ours.encoder, src), embed(ours.decoder, tgt), tgt_mask=~causal_mask(5), src_key_padding_mask=~real, memory_key_padding_mask=~real)
    want,got = ours.head(out),ours(src, tgt)
    close(got, want)
    embs = [ours.encoder.emb.weight, ours.decoder.emb.weight]
    for a,b in zip(torch.autograd.grad(got.square().sum(), embs), torch.autograd.grad(want.square().sum(), embs)): close(a, b, 1e-4)

def test_paper():
    "The `vaswani` preset is the paper's base model: post-norm, ReLU, sinusoids, scaled and shared embeddings, 65 million parameters with 37,000 tokens"
    with torch.device('meta'): model = Seq2SeqTransformer('vaswani', vocab_sz=37_000, d_model=512, n_heads=8, n_layers=6, share_emb=True)
    assert sum(p.numel() for p in model.parameters()) == 63_082_496 # 37,000·512 + 6 layers of 3,152,384 and 4,204,032; the paper rounds up
    c = model.config
    assert (c.wiring, c.ff, c.positions, c.scale_emb, c.p) == ('post','relu','sinusoidal',True,0.1)

# Masks

@some
@given(configs(max_len=17), st.integers(1,8), st.integers(1,8), st.integers(0,9), st.integers(0,9), st.integers(0,9))
def test_padding(config, src_len, tgt_len, front, back, behind):
    "Padding on either side, and a longer companion, change nothing"
    model = build(Seq2SeqTransformer, config)
    src,tgt = text(1,src_len),text(1,tgt_len)
    alone = model(src, tgt)
    close(model(padded(src, front, back), padded(tgt, 0, behind))[:,:tgt_len], alone)
    pair = torch.cat([padded(src, front, back+5), padded(text(1,src_len+front+back+5), 0, 0)])
    close(model(pair, torch.cat([tgt, text(1,tgt_len)]))[:1], alone)

@some
@given(configs(), st.integers(2,8), st.data())
def test_future(config, sl, data):
    "No output of the decoder depends on a later token; each does on its own, on those before and on the source"
    model,src = build(Seq2SeqTransformer, config),text(1,5)
    i = data.draw(st.integers(0, sl-1))
    a,b = (t := text(1,sl)),t.clone()
    b[:,i:] = (b[:,i:]-4 + torch.randint(1, V-4, (sl-i,)))%(V-4) + 4
    out = [model(src, o)[0] for o in (a,b)]
    close(out[0][:i], out[1][:i])
    assert (out[0][i]-out[1][i]).abs().max() > 1e-3
    other = (src-4+1)%(V-4) + 4
    assert (model(other, a)[0]-out[0]).abs().amax(-1).min() > 1e-4

def test_future_gradient():
    "Nor does a gradient reach one"
    model,seen = tiny(),[]
    model.decoder.emb.register_forward_hook(lambda m, args, out: seen.append(out))
    g, = torch.autograd.grad(model(text(1,5), text(1,8))[0,3].square().sum(), seen)
    assert g[0,4:].abs().max() == 0 and g[0,:4].abs().amax(-1).min() > 0

def test_nothing_to_read():
    "A source of nothing but padding leaves a language model"
    model = tiny()
    out = model(torch.full((2,3), PAD_), text(2,4))
    assert out.isfinite().all()

@pytest.mark.parametrize('long', ['window','head','tail','head+tail'])
def test_long_source(long):
    "A source beyond `max_len` is read whole in windows, or cut as the configuration says"
    model,src,tgt = tiny(long=long, positions='learned'),text(1,30),text(1,4)
    cut = dict(head=src[:,:12], tail=src[:,-12:])
    cut['head+tail'] = torch.cat([src[:,:6], src[:,-6:]], 1)
    if long in cut: return close(model(src, tgt), model(cut[long], tgt))
    states,_ = model.encode(src)
    close(states, torch.cat([model.encoder(o) for o in src.split(10, 1)], 1))  # three windows of ten
    last = src.clone(); last[:,-1] = 4 + (src[:,-1]-3)%(V-4)
    assert (model(last, tgt)-model(src, tgt)).abs().max() > 1e-4

# Cache

def cached(preset): return dict(positions='learned') if make_config(preset).positions == 'conv' else {}
cases = {**{k:dict(config=k, **cached(k)) for k in PRESETS}, **{f'{k} positions':dict(positions=k) for k in POSITIONS if k != 'conv'}, 'one key head':dict(n_kv_heads=1), 'own width':dict(d_head=6),
         'one decoder block':dict(n_dec_layers=1), 'three':dict(n_dec_layers=3, share_emb=True), 'width 5':dict(max_len=5), 'learned, width 5':dict(max_len=5, positions='learned')}

def sources(*lens): return torch.cat([padded(text(1,n), 0, max(lens)-n) for n in lens])

@torch.no_grad()
def walk(model, src, prompts, more, cache=True):
    "The reader, and its logits before each column of `more`"
    reader,res = make_reader(model, prompts, None, cache, src=src), []
    for new in more.T:
        res.append(reader.next() if res else reader.prefill())
        reader.append(new)
    return reader,res

@pytest.mark.parametrize('case', cases)
def test_cached(case):
    "With the cache, without it and in training, within `max_len` and beyond, for sources and prompts of different lengths"
    model,src,more = tiny(**cases[case]),sources(3,8,5),torch.randint(4, V, (3,16))
    prompts = [text(n) for n in (1,2,1)]
    reader,got = walk(model, src, prompts, more)
    assert isinstance(reader, CachedReader)
    for a,b in zip(got, walk(model, src, prompts, more, cache=False)[1]): close(a, b, 1e-4*b.abs().max().item())
    if model.decoder.positions.max_len: return
    for r in range(3):
        tgt = torch.cat([prompts[r], more[r]])[None]
        want = model(src[r:r+1], tgt)[0,len(prompts[r])-1:-1]
        close(torch.stack([o[r] for o in got]), want, 1e-4*want.abs().max().item())

@pytest.mark.parametrize('rows', [[2,0,1],[0,0,2],[1],[2,1,0,0,1]])
def test_rows_keep_their_source(rows):
    "Texts that change places, come several times or end keep what they read"
    model,src,prompts = tiny(),sources(3,8,5),text(3,1)
    more = torch.randint(4, V, (3,8))
    later = torch.cat([more[:,:3].new_zeros(len(rows),3), more[rows,3:]], 1)
    def go(cache):
        reader,res = make_reader(model, prompts, None, cache, src=src), []
        with torch.no_grad():
            for i in range(8):
                if i == 3: reader.select(torch.tensor(rows))
                res.append(reader.next() if res else reader.prefill())
                reader.append((more if i < 3 else later)[:,i])
        return res
    for a,b in zip(go(True), go(False)): close(a, b, 1e-4)
    plain = model(src[rows], torch.cat([prompts[rows], more[rows]], 1))
    for i,a in enumerate(go(True)): close(a, plain[:,i] if i >= 3 else model(src, torch.cat([prompts, more], 1))[:,i], 1e-4)

def test_compile_but_for_the_compiler(monkeypatch):
    "A step made for one source serves others, of other lengths, with padding and without"
    monkeypatch.setattr('fastai_txf.generate.faststep._build', uncompiled)
    model = tiny(n_kv_heads=2)
    for lens in ((3,8),(5,5),(2,9),(4,),(7,),(1,)):
        src,start = sources(*lens),text(len(lens),1)
        got,want = [generate(model, start, 10, src=src, temperature=0, compile=o) for o in (True,False)]
        assert got.equal(want)

def counted(m, name, count):
    "Calls of `m` are noted: a part of one's own, of which writing finds out that the cache suits it"
    forward = m.forward
    m.forward = lambda *args, **kw: count.append(name) or forward(*args, **kw)

def test_read_once():
    "The source is encoded once, and its keys and values are computed once for each block"
    def calls(n):
        model,count = tiny(),[]
        for name,m in (('encoder', model.encoder), ('key', model.decoder.blocks[0].cross.fn.k)): counted(m, name, count)
        generate(model, text(2,1), n, src=text(2,5), seed=0)
        return sorted(count)
    assert calls(3) == calls(8)
    assert 'key' in calls(3) and 'encoder' in calls(3)

class Foreign(nn.Module):
    "A model of one's own"
    def __init__(self):
        super().__init__()
        self.emb,self.core,self.head = nn.Embedding(V, 8),nn.Transformer(8, 2, 1, 1, 16, 0., batch_first=True),nn.Linear(8, V)
    def forward(self, src, tgt):
        return self.head(self.core(self.emb(src), self.emb(tgt), tgt_mask=~causal_mask(tgt.shape[1]), src_key_padding_mask=src == PAD_, memory_key_padding_mask=src == PAD_))

class Backwards(Seq2SeqTransformer):
    def encode(self, src):
        h,mask = super().encode(src)
        return -h, mask

@pytest.mark.parametrize('make', [Foreign, lambda: tiny(positions='conv'), lambda: Backwards(vocab_sz=V, d_model=16)], ids=['foreign','conv','subclass'])
def test_any_model(make):
    "What has no cache is read again for every token, through the same loop, beams included"
    torch.manual_seed(0)
    model,src = make().eval(),sources(4,6)
    assert type(make_reader(model, text(2,1), None, src=src)) is Reader
    out = generate(model, text(2,1), 5, src=src, temperature=0)
    for i in range(5): assert model(src, out[:,:i+1])[:,-1].argmax(-1).equal(out[:,i+1])
    ids,scores = beam_search(model, text(1,1), 3, src=src[:1], num_beams=3)
    logp = model(src[:1].expand(3,-1), ids[:,:-1]).log_softmax(-1).gather(-1, ids[:,1:,None]).sum((1,2))
    close(scores, logp/3, 1e-4)

@some
@given(st.lists(st.integers(1,9), min_size=1, max_size=4), st.integers(0,6))
def test_batch_is_its_rows(lens, n):
    "Greedy texts do not depend on companions"
    model,src = tiny(),sources(*lens)
    got = generate(model, torch.full((len(lens),1), BOS_), n, src=src, temperature=0)
    for i in range(len(lens)): assert generate(model, torch.tensor([[BOS_]]), n, src=src[i:i+1,:lens[i]], temperature=0).equal(got[i:i+1])

def test_beams_are_exhaustive():
    "As many beams as there are texts find the best of all"
    model = tiny(vocab_sz=5, tgt_vocab_sz=5)
    src = torch.tensor([[2,4,0]])
    ids,scores = beam_search(model, torch.tensor([[2]]), 3, src=src, num_beams=125, length_penalty=0)
    every = torch.cartesian_prod(*[torch.arange(5)]*3)
    tgt = torch.cat([torch.full((125,1), 2), every], 1)
    logp = model(src.expand(125,-1), tgt[:,:-1]).log_softmax(-1).gather(-1, tgt[:,1:,None]).sum((1,2))
    best = logp.argsort(descending=True)
    close(scores, logp[best], 1e-4)
    assert ids[0].equal(tgt[best[0]])

def test_source_errors():
    "A source where there is none, none where one is needed, and one for fewer texts"
    model,lm = tiny(),TransformerLM(vocab_sz=V, d_model=16)
    with pytest.raises(ValueError, match='Seq2SeqTransformer needs a source'): generate(model, text(1,1), 2)
    with pytest.raises(ValueError, match='TransformerLM reads no source'): generate(lm, text(1,1), 2, src=text(1,3))
    with pytest.raises(ValueError, match=r'src of shape \(1, 3\) for 2 texts'): generate(model, text(2,1), 2, src=text(1,3))
    with pytest.raises(ValueError, match='Seq2SeqTransformer needs a source'): token_logprobs(model, text(1,4))
    class NoCross(nn.Module):
        def __init__(self, d_model): super().__init__()
    with pytest.raises(TypeError, match='takes no `cross`'): TransformerDecoder(vocab_sz=V, block=NoCross)

@pytest.mark.parametrize('share_emb,tie', [(True,True),(True,False),(False,True),(False,False)])
def test_sharing(share_emb, tie):
    "Embeddings and output layer share what they should, through saving and copying, and every parameter is in one group"
    model = tiny(share_emb=share_emb, tie=tie)
    for m in (model, pickle.loads(pickle.dumps(model))):
        assert (m.encoder.emb.weight is m.decoder.emb.weight) == share_emb and (m.head.weight is m.decoder.emb.weight) == tie
        ids = [id(p) for g in seq2seq_splitter(m) for p in g]
        assert sorted(ids) == sorted(map(id, m.parameters()))
    assert {id(p) for p in model.decoder.parameters()} <= {id(p) for p in seq2seq_splitter(model)[-1]}
    pairs = tiny(bigrams=50)
    assert pairs.encoder.bigrams.table.weight in {*seq2seq_splitter(pairs)[0]} and pairs.decoder.bigrams.table.weight in {*seq2seq_splitter(pairs)[-1]}

@pytest.mark.parametrize('kw', [dict(share_emb=True), dict(config=TransformerConfig(d_model=16, n_layers=1, n_heads=2, share_emb=True))])
def test_sharing_needs_one_vocabulary(pdf, kw):
    "As many tokens are not the same tokens"
    two,one = (Seq2SeqDataLoaders.from_df(pdf, tok_tfm=toks, **KW) for toks in ((BPETokenizer(270), BPETokenizer(270)), BPETokenizer(270)))
    a,b = pair_vocabs(two)
    assert len(a) == len(b) and list(a) != list(b)
    with pytest.raises(ValueError, match='share_emb=True needs one vocabulary.*share_vocab=True'): transformer_seq2seq_learner(two, **{**SMALL, **kw})
    model = transformer_seq2seq_learner(one, **{**SMALL, **kw}).model
    assert model.encoder.emb is model.decoder.emb

# Tokens

@given(st.text())
@example('▁ ▁▁')
@example('xxbos xxeos xxunk')
def test_characters(t):
    "Characters give every text back"
    tok = CharTokenizer()
    toks, = tok([t])
    assert tok.detokenize(['xxbos', *toks, 'xxeos']) == t and len(toks) == len(t)

corpus = ['Ein kleines Mädchen klettert in ein Spielhaus.', 'A little girl climbing into a playhouse.', 'xxbos xxbos xxbos xxbos']*4
bpe = BPETokenizer(320).train(corpus)

@given(st.text())
@example('xxbos xxeos Ġ\r\n')
@example('🙂🙂')
def test_byte_pairs(t):
    "So do byte pairs, whatever they were learned from; all tokens are in the vocabulary and none is a special one"
    toks, = bpe([t])
    assert bpe.detokenize(['xxbos', *toks, 'xxeos']) == t
    assert set(toks) <= set(bpe.vocab) - {'xxbos','xxeos','xxunk','xxpad'}

def test_byte_pairs_learn():
    "Frequent words become one token, the vocabulary keeps its size and order, pickling keeps all"
    assert len(list(bpe([corpus[0]]))[0]) < len(corpus[0])/2 and len(bpe.vocab) == len(set(bpe.vocab)) <= 320
    again = pickle.loads(pickle.dumps(bpe))
    assert again.vocab == bpe.vocab and list(again(corpus)) == list(bpe(corpus))
    again.setup(['other texts'])                                            # fastai calls it whenever it tokenizes
    assert again.vocab == bpe.vocab
    assert BPETokenizer().vocab is None
    with pytest.raises(ValueError, match='no vocabulary yet'): list(BPETokenizer()(['a']))
    ruled = BPETokenizer(300)
    ruled.setup(['HELLO WORLD']*9, [str.lower])
    assert 'Ġworld' in ruled.vocab                                          # learned from what the rules make of a text
    with pytest.raises(ValueError, match='vocab_sz=200'): BPETokenizer(200)

def test_byte_pairs_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tokenizers', None)
    with pytest.raises(ImportError, match='pip install tokenizers'): BPETokenizer()

# Loaders

def pairs_df(n=60, seed=0):
    "Letters and the same backwards"
    rng = random.Random(seed)
    words = [' '.join(rng.choices(['Ab','cde','fg','h'], k=rng.randint(1,5))) for _ in range(n)]
    return pd.DataFrame(dict(src=words, tgt=[w[::-1] for w in words], is_valid=[i%5 == 0 for i in range(n)]))

KW = dict(src_col='src', tgt_col='tgt', valid_col='is_valid', bs=8)
toks = dict(words=BaseTokenizer, characters=CharTokenizer, pieces=lambda: BPETokenizer(300), mixed=lambda: (CharTokenizer(), BPETokenizer(300)))

@pytest.fixture(scope='module')
def pdf(): return pairs_df()

@pytest.fixture(scope='module')
def pdls(pdf): return Seq2SeqDataLoaders.from_df(pdf, tok_tfm=CharTokenizer(), **KW)

@pytest.mark.parametrize('kind', toks)
def test_batches(pdf, kind):
    "Both sides from `xxbos` to `xxeos`, padding behind and nowhere else, and back to the text"
    dls = Seq2SeqDataLoaders.from_df(pdf, tok_tfm=toks[kind](), rules=[], min_freq=1, **KW)
    seen = 0
    for src,tgt in dls.valid:
        for side,x in enumerate((src,tgt)):
            vocab = pair_vocabs(dls)[side]
            n = (x != PAD_).sum(1)
            for row,k in zip(x.tolist(), n.tolist()):
                assert row[0] == vocab.index('xxbos') and row[k-1] == vocab.index('xxeos') and set(row[k:]) <= {PAD_}
            assert n.max() == x.shape[1]
        seen += len(src)
    assert seen == 12
    shown = {tuple(map(str, s)) for b in dls.valid for s in dls.valid.decode_batch(b, 99)}
    assert shown == {(s,t) for s,t,v in pdf.itertuples(index=False) if v}

def test_sorted(pdf):
    "Batches of validation are in order of length, those of training hold pairs of like length"
    dls = Seq2SeqDataLoaders.from_df(pairs_df(600), tok_tfm=CharTokenizer(), **KW)
    lens = [int((x != PAD_).sum()) for b in dls.valid for x in zip(*b) for x in [torch.cat(x)]]
    assert lens == sorted(lens, reverse=True)
    waste = np.mean([(b[0] == PAD_).float().mean().item() for b in dls.train])
    assert waste < 0.1

def test_vocabularies(pdf):
    "Of their own, shared on request, and shared where one tokenizer brings its own; training rows only"
    rare = pdf.assign(src=pdf.src.where(~pdf.is_valid, 'Zz'))
    make = lambda **kw: pair_vocabs(Seq2SeqDataLoaders.from_df(rare, **{**KW, **kw}))
    a,b = make(tok_tfm=BaseTokenizer(), rules=[])
    assert 'Ab' in a and 'Ab' not in b and 'bA' in b and 'Zz' not in a
    a,b = make(tok_tfm=BaseTokenizer(), rules=[], share_vocab=True)
    assert list(a) == list(b) and {'Ab','bA'} <= set(a)
    tok = BPETokenizer(400)
    a,b = make(tok_tfm=tok)
    assert list(a) == list(b) == tok.vocab and 'Zz' not in a
    with pytest.raises(ValueError, match='share_vocab=True'): make(tok_tfm=(BPETokenizer(300), BPETokenizer(280)), share_vocab=True)

def test_data_block(pdf):
    "The blocks in a `DataBlock` of one's own, and a column split"
    dblock = DataBlock((SequenceBlock(CharTokenizer()), SequenceBlock(CharTokenizer())), get_x=ColReader('src'), get_y=ColReader('tgt'), splitter=ColSplitter())
    dls = dblock.dataloaders(pdf, bs=4, num_workers=0)
    check_pairs(dls)
    learn = quiet(transformer_seq2seq_learner(dls, d_model=16, n_layers=1))
    learn.fit(1, 1e-3)
    assert isinstance(learn.predict('Ab'), str)

def test_csv(pdf, tmp_path):
    "From a file, an empty field being an empty text"
    df = pdf.assign(src=[''] + list(pdf.src[1:]), is_valid=pdf.is_valid.astype(int))
    df.to_csv(tmp_path/'pairs.csv', index=False)
    dls = Seq2SeqDataLoaders.from_csv(tmp_path, src_col='src', tgt_col='tgt', valid_pct=0.2, seed=0, tok_tfm=CharTokenizer(), bs=8)
    assert len(dls.train_ds) + len(dls.valid_ds) == 60 and dls.path == tmp_path
    assert min(len(x) for x,_ in [*dls.train_ds, *dls.valid_ds]) == 2

def test_random_split(pdf):
    "Without `valid_col` a share is drawn, the same for a seed"
    make = lambda seed: [x.tolist() for x,_ in Seq2SeqDataLoaders.from_df(pdf, src_col='src', tgt_col='tgt', seed=seed, tok_tfm=CharTokenizer(), bs=8).valid_ds]
    assert make(1) == make(1) != make(2) and len(make(1)) == 12
    none = Seq2SeqDataLoaders.from_df(pdf, src_col='src', tgt_col='tgt', valid_pct=0, tok_tfm=CharTokenizer(), bs=8)
    assert len(none.valid_ds) == 0 and len(none.train_ds) == 60

bad = {'tokens':(lambda d: d.assign(src=d.src.str.split()), {}, r"column 'src' holds \['.* give the texts before they were cut, or df\['src'\].str.join\(' '\)"),
       'missing target':(lambda d: d.assign(tgt=[None]+list(d.tgt[1:])), {}, "column 'tgt' has no text .*index 0"),
       'NaN source':(lambda d: d.assign(src=[*d.src[:-1],float('nan')]), {}, "column 'src' has no text .*index 59"),
       'numbers':(lambda d: d.assign(tgt=1), {}, "column 'tgt' holds 1 .int."), 'no column':(lambda d: d, dict(tgt_col='en'), "no columns are called 'en'"),
       'one column':(lambda d: d, dict(tgt_col='src'), 'name one column to read and another to write'), 'two columns':(lambda d: d, dict(src_col=['src','tgt']), 'name one column'),
       'no rows':(lambda d: d[:0], {}, 'no rows'), 'all valid':(lambda d: d.assign(is_valid=True), {}, 'all of 60 rows are for validation'),
       'three tokenizers':(lambda d: d, dict(tok_tfm=[CharTokenizer()]*3), '3 tokenizers'), 'large batch':(lambda d: d, dict(bs=100), 'not one batch of bs=100')}

@pytest.mark.parametrize('case', bad)
def test_bad_frames(pdf, case):
    "Named with the remedy before anything is tokenized"
    change,kw,match = bad[case]
    with pytest.raises(ValueError, match=match): Seq2SeqDataLoaders.from_df(change(pdf), **{**KW, 'tok_tfm':CharTokenizer(), **kw})

def test_bad_loaders(pdf, pdls):
    "Misspelt options, other loaders, a vocabulary without ends, targets without ends"
    with pytest.raises(TypeError, match='tgt_col'): Seq2SeqDataLoaders.from_df(pdf, tgt_cal='tgt')
    clf = make_dls(texts_df())
    for dls in (clf, make_dls(texts_df(), is_lm=True, seq_len=16)):
        with pytest.raises(TypeError, match='no two vocabularies'): transformer_seq2seq_learner(dls)
    with pytest.raises(TypeError, match='is no DataLoaders'): transformer_seq2seq_learner([1])
    with pytest.raises(ValueError, match='use transformer_seq2seq_learner'): transformer_classifier_learner(pdls)
    block = lambda vocab=None: SequenceBlock(CharTokenizer(), vocab)
    make = lambda *blocks: DataBlock(blocks, get_x=ColReader('src'), get_y=ColReader('tgt'), splitter=ColSplitter()).dataloaders(pdf, bs=4, num_workers=0)
    with pytest.raises(ValueError, match=r"target vocabulary has no \['xxeos'\]"): check_pairs(make(block(), block(['xxunk','xxpad','xxbos'])))
    with pytest.raises(ValueError, match=r'at \[1, 0\]'): check_pairs(make(block(), block(['xxpad','xxunk','xxbos','xxeos'])))
    plain = TextBlock.from_df('tgt', tok=CharTokenizer(), tok_text_col='tgt', rules=[], n_workers=0)
    with pytest.raises(ValueError, match="instead of 'xxbos' and 'xxeos'"): check_pairs(make(block(), plain))

def test_csv_of_numbers(tmp_path):
    "What looks like a number is text, with a header and without"
    df = pd.DataFrame(dict(sum=[f'{i}+1' for i in range(20)], is_valid=[i%5 == 0 for i in range(20)], res=[f'{i+1:03}' for i in range(20)]))
    kw = dict(tok_tfm=CharTokenizer(), bs=4)
    for header,cols in (('infer',dict(src_col='sum', tgt_col='res', valid_col='is_valid')), (None,dict(src_col=0, tgt_col=2, seed=0))):
        df.to_csv(tmp_path/'pairs.csv', index=False, header=header is not None)
        dls = Seq2SeqDataLoaders.from_csv(tmp_path, header=header, **cols, **kw)
        assert ('005','4+1') in {tuple(map(str, reversed(o))) for dl in dls.loaders for b in dl.new(shuffle=False, drop_last=False) for o in dl.decode_batch(b, 99)}
    learn = quiet(transformer_seq2seq_learner(dls, **SMALL))
    assert len(learn.predict(pd.read_csv(tmp_path/'pairs.csv', header=None)[:3])) == 3      # columns called 0, 1, 2

def test_one_tokenizer(pdf):
    "A class stands for one tokenizer of both sides"
    a,b = pair_vocabs(Seq2SeqDataLoaders.from_df(pdf, tok_tfm=BPETokenizer, share_vocab=True, **KW))
    assert list(a) == list(b)

def test_rare_tokens(pdf):
    "A tokenizer that loses nothing keeps characters that came once"
    for tok,n in ((CharTokenizer(), 1), (BaseTokenizer(), 0)):
        odd = pdf.assign(src=[*pdf.src[:-1], 'Q'])
        assert ('Q' in pair_vocabs(Seq2SeqDataLoaders.from_df(odd, tok_tfm=tok, rules=[], **KW))[0]) == n

def test_numbers_are_kept(pdf):
    "`from_df` makes the numbers of a pair once; a block of one's own, whose `get_x` may be random, each time"
    dls = Seq2SeqDataLoaders.from_df(pdf, tok_tfm=CharTokenizer(), **KW)
    for _ in range(2): sum(1 for _ in dls.train)
    kept = dls.train.made[3]
    assert len(dls.train.made) >= 40 and all(a is not b and a.equal(b) for a,b in zip(dls.train.create_item(3), kept))
    assert dls.train.made[3] is kept
    rng = random.Random(0)
    dblock = DataBlock((SequenceBlock(CharTokenizer()), SequenceBlock(CharTokenizer())), get_x=lambda r: str(rng.random()), get_y=ColReader('tgt'), splitter=ColSplitter())
    dl = dblock.dataloaders(pdf, bs=4, num_workers=0).train
    assert dl.create_item(0)[0].tolist() != dl.create_item(0)[0].tolist()

def test_test_dl(pdls):
    "Odd items are named"
    for item,match in (([], 'no text'), (['a',None], 'number 1 is None'), ([1], 'number 0 is 1')):
        with pytest.raises((ValueError,TypeError), match=match): pdls.test_dl(item)

def test_test_dl_columns(pdf, pdls):
    "A missing column is named with those that are there; the targets' only if they are asked for"
    df = pdf[['src','tgt']][:5]
    assert len(pdls.test_dl(df[['src']]).dataset) == len(pdls.test_dl(df, with_labels=True).dataset) == 5
    with pytest.raises(ValueError, match="no columns are called 'tgt': .*'src', 'target'"): pdls.test_dl(df.rename(columns={'tgt':'target'}), with_labels=True)
    with pytest.raises(ValueError, match="no columns are called 'src': .*'source', 'tgt'"): pdls.test_dl(df.rename(columns={'src':'source'}))

def test_test_dl_of_rows(pdf, pdls):
    "A row, a dictionary or a list of them are pairs, a generator is texts, columns of tokens stay"
    row = pdf.iloc[0]
    for item,n in ((row, 1), (dict(row), 1), ([dict(row)]*3, 3)):
        for dl in (pdls.test_dl(item), pdls.test_dl(item, with_labels=True)):
            assert [[str(o) for o in pair] for pair in dl.decode_batch(dl.one_batch())] == [[row.src, row.tgt][:len(dl.dataset.tls)]]*n
    assert len(pdls.test_dl({'src':'Ab'}).dataset) == 1 and len(pdls.test_dl(t for t in pdf.src[:3]).dataset) == 3
    tokens = pdls.valid_ds.items[:3]
    assert all(x.equal(y) for a,b in zip(pdls.test_dl(tokens, with_labels=True).dataset, pdls.valid_ds) for x,y in zip(a, b))

odd = {'texts':(lambda d: list(d.src), True, ValueError, "with_labels=True, but there are texts alone .'.*give their targets.*'src', 'tgt'"), 'no rows':(lambda d: d[:0], False, ValueError, 'no rows'),
       'None':(lambda d: d.assign(src=[None]+['a']*4), False, ValueError, "'src' has no text .*index 0"), 'no target':(lambda d: d.assign(tgt=['a']*4+[None]), True, ValueError, "'tgt' has no text .*index 4"),
       'numbers':(lambda d: d.assign(tgt=1), True, ValueError, "'tgt' holds 1 .int."), 'row without a target':(lambda d: {'src':'a'}, True, ValueError, "no columns are called 'tgt'"),
       'dictionary':(lambda d: {'source':'a'}, False, ValueError, "no columns are called 'src': .*'source'"), 'list in a dictionary':(lambda d: {'src':['a']}, False, ValueError, "'src' holds .'a'. .list."),
       'number':(lambda d: 5, False, TypeError, '5 is a int')}

@pytest.mark.parametrize('item,labels,error,match', odd.values(), ids=odd)
def test_test_dl_errors(pdf, pdls, item, labels, error, match):
    "At the call, not when a batch is made"
    with pytest.raises(error, match=match): pdls.test_dl(item(pdf[['src','tgt']][:5]), with_labels=labels)

def test_rules_from_an_iterator(pdf):
    "They reach both sides"
    df = pdf.assign(src=pdf.src.str.upper(), tgt=pdf.tgt.str.upper())
    a,b = [Seq2SeqDataLoaders.from_df(df, rules=r, tok_tfm=CharTokenizer(), **KW).vocab for r in ([str.lower], iter([str.lower]))]
    assert [*map(list, a)] == [*map(list, b)] and not {*'ABCD'} & {*b[1]}

def test_test_dl_of_categories(pdls):
    "One distinct text as a category is a text"
    df = pd.DataFrame(dict(src=['abc']*3, tgt=['cba']*3))
    a,b = [pdls.test_dl(d, with_labels=True).one_batch() for d in (df, df.astype('category'))]
    assert a[0].equal(b[0]) and a[1].equal(b[1])

def test_show_batch(pdls, capsys):
    "Source and target side by side"
    pdls.show_batch(max_n=2)
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ['source','target'] and len(out) == 3

# The learner

SMALL = dict(d_model=16, n_heads=2, n_layers=1, p=0., emb_p=0.)

@pytest.fixture
def make(pdls, tmp_path): return lambda **kw: quiet(transformer_seq2seq_learner(kw.pop('dls', pdls), **{**SMALL, 'path':tmp_path, **kw}))

def test_unknown_targets():
    "Targets that occur once each are no words to learn; characters are"
    df = pd.DataFrame(dict(src=[f'the number {i}' for i in range(60)], tgt=[str(i) for i in range(60)]))
    with pytest.warns(UserWarning, match=r'100% of the target tokens.*xxunk.*min_freq.*CharTokenizer'): Seq2SeqDataLoaders.from_df(df, seed=0, bs=8)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        Seq2SeqDataLoaders.from_df(df, seed=0, bs=8, tok_tfm=CharTokenizer())

@pytest.mark.parametrize('share', ['no',1,None])
def test_share_vocab_is_yes_or_no(share):
    df = pd.DataFrame(dict(src=['a b']*9, tgt=['b a']*9))
    with pytest.raises(TypeError, match='share_vocab=.*True or False'): Seq2SeqDataLoaders.from_df(df, share_vocab=share)

class Blanks(ItemTransform):
    "Word dropout that writes into the source"
    def encodes(self, o):
        o[0][1:-1] = 0
        return o

def test_epochs_begin_with_the_texts(pdls):
    "What a transform of training writes into a pair is gone in the next epoch"
    dl = pdls.train.new(keep=True, after_item=Blanks())
    for src,_ in dl: assert not src[:,1].any()
    assert dl.made and all(dl.create_item(i)[0].equal(dl.dataset[i][0]) for i in dl.made)

def test_loss(make):
    "The loss is cross-entropy with smoothed labels, over real tokens alone"
    learn = make(label_smoothing=0.2)
    src,tgt = next(iter(learn.dls.valid))
    loss = learn.validate(dl=[(src,tgt)])[0]
    logits = learn.model.eval()(src.as_subclass(torch.Tensor), tgt.as_subclass(torch.Tensor)[:,:-1])
    logp,want = logits.log_softmax(-1),tgt.as_subclass(torch.Tensor)[:,1:]
    each = -(0.8*logp.gather(-1, want[...,None])[...,0] + 0.2*logp.mean(-1))
    close(torch.tensor(loss), each[want != PAD_].mean().detach().cpu())
    longer = learn.validate(dl=[(padded(src.as_subclass(torch.Tensor), 3, 0), padded(tgt.as_subclass(torch.Tensor), 2, 9))])[0]
    assert math.isclose(loss, longer, rel_tol=1e-5)                         # padding on either side, and in front
    with pytest.raises(ValueError, match='label_smoothing=1'): make(label_smoothing=1)

def test_token_accuracy(make):
    learn = make(metrics=TokenAccuracy())
    got,right,n = learn.validate()[1],0,0
    for src,tgt in learn.dls.valid:
        guess = learn.model.eval()(src.as_subclass(torch.Tensor), tgt.as_subclass(torch.Tensor)[:,:-1]).argmax(-1)
        for g,t in zip(guess.tolist(), tgt[:,1:].tolist()):
            k = [a == b for a,b in zip(g, t) if b != PAD_]
            right,n = right+sum(k),n+len(k)
    assert math.isclose(got, right/n)

def by_position(pred, targ): return (pred.argmax(2) == targ).float().mean()
def whole_text(pred, targ): return (pred.argmax(-1) == targ).all(-1).float().mean()

def test_metrics_leave_out_padding(make):
    "fastai's accuracy, and any function of predictions and targets, is one number for all batch sizes, the share of tokens"
    learn = make(metrics=[TokenAccuracy(), accuracy, by_position, whole_text])
    learn.fit(4, 1e-2)
    rows = [learn.validate(dl=learn.dls.valid.new(bs=bs))[1:] for bs in (1,5,12)]
    assert rows[0][0] > 0
    for token,*own,_ in rows: assert own == pytest.approx([token]*2)
    assert [o[-1] for o in rows] == pytest.approx([rows[0][-1]]*3)
    learn.recorder.train_metrics = True
    learn.fit(1)
    assert learn.recorder.values[-1][2] == pytest.approx(learn.recorder.values[-1][1])

def test_metrics_of_all_targets_leave_out_padding(make):
    "fastai's metrics of sklearn, on classes and on probabilities: as on the tokens that count, for all batch sizes"
    def log_loss(pred, targ): return F.nll_loss(pred.log(), targ)
    learn = make(metrics=[TokenAccuracy(), BalancedAccuracy(), F1Score(average='macro'), AccumMetric(log_loss, dim_argmax=-1, activation=ActivationType.Softmax, flatten=False)])
    learn.fit(4, 1e-2)
    assert learn.metrics[2].name == pickle.loads(pickle.dumps(learn.metrics[2])).name == 'f1_score'
    rows = [learn.validate(dl=learn.dls.valid.new(bs=bs))[1:] for bs in (1,5,12)]
    pred,targ = [],[]
    for src,tgt in learn.dls.valid:
        src,tgt = (o.as_subclass(torch.Tensor) for o in (src,tgt))
        with torch.no_grad(): logits,tgt = learn.model.eval()(src, tgt[:,:-1]), tgt[:,1:]
        pred.append(logits[tgt != PAD_]); targ.append(tgt[tgt != PAD_])
    pred,targ = torch.cat(pred), torch.cat(targ)
    guess = pred.argmax(-1)
    want = [(guess == targ).float().mean().item(), skm.balanced_accuracy_score(targ, guess), skm.f1_score(targ, guess, average='macro'), F.cross_entropy(pred, targ).item()]
    for row in rows: assert list(row) == pytest.approx(want, rel=1e-4)

def test_fastai_bleu_leaves_out_padding(make):
    "fastai's BLEU of the likeliest tokens, for all batch sizes that of the texts without padding"
    learn = make(metrics=CorpusBLEUMetric())
    learn.fit(4, 1e-2)
    assert learn.metrics[0].name == CorpusBLEUMetric().name
    rows = [learn.validate(dl=learn.dls.valid.new(bs=bs))[1] for bs in (1,5,12)]
    want = CorpusBLEUMetric()
    for src,tgt in learn.dls.valid.new(bs=1):
        src,tgt = (o.as_subclass(torch.Tensor) for o in (src,tgt))
        with torch.no_grad(): pred = learn.model.eval()(src, tgt[:,:-1])
        want.accumulate(SimpleNamespace(training=False, pred=pred, y=tgt[:,1:]))
    assert 0 < rows[0] and rows == pytest.approx([want.value]*3)

weighings = dict(plain={}, smooth=dict(label_smoothing=0.2), sum=dict(reduction='sum'), each=dict(reduction='none'))

@pytest.mark.parametrize('kind,zeros', [*((k,False) for k in weighings), *((k,True) for k in weighings if k != 'smooth')])
def test_class_weights(make, kind, zeros):
    "Loss and perplexity are the mean over all targets by their weights, for all batch sizes, the perplexity without smoothing; a batch of weight 0 does not count"
    vocab = make().dls.vocab[1]
    w = torch.zeros(len(vocab)) if zeros else torch.linspace(0.1, 9, len(vocab))
    w[vocab.index('f')] = 5.                                                # not in all targets
    kw = dict(ignore_index=PAD_, weight=w, **weighings[kind])
    learn = make(loss_func=CrossEntropyLossFlat(**kw), metrics=Perplexity())
    rows = [learn.validate(dl=learn.dls.valid.new(bs=bs)) for bs in (1,5,12)]
    total = entropy = count = 0
    for src,tgt in learn.dls.valid:
        src,tgt = (o.as_subclass(torch.Tensor) for o in (src,tgt))
        with torch.no_grad(): logits,tgt = learn.model.eval()(src, tgt[:,:-1]).flatten(0, 1), tgt[:,1:].flatten()
        total += F.cross_entropy(logits, tgt, **{**kw, 'reduction':'sum'}).item()
        entropy += F.cross_entropy(logits, tgt, w, ignore_index=PAD_, reduction='sum').item()
        count += w[tgt[tgt != PAD_]].sum().item()
    for row in rows: assert list(row) == pytest.approx([total/count, math.exp(entropy/count)], rel=1e-4)

padded_losses = dict(
    flat=(lambda: CrossEntropyLossFlat(), r'CrossEntropyLossFlat\(ignore_index=1\)'),
    weighted=(lambda: CrossEntropyLossFlat(weight=torch.ones(20), label_smoothing=0.2), r'CrossEntropyLossFlat\(ignore_index=1, label_smoothing=0.2, weight=…\)'),
    other=(lambda: CrossEntropyLossFlat(ignore_index=0), r'CrossEntropyLossFlat\(ignore_index=1\)'),
    smooth=(lambda: LabelSmoothingCrossEntropyFlat(eps=0.3), r'CrossEntropyLossFlat\(ignore_index=1, label_smoothing=0.3\)'),
    focal=(lambda: FocalLossFlat(), r'CrossEntropyLossFlat\(ignore_index=1\)'),
    torch=(lambda: nn.CrossEntropyLoss(), r'CrossEntropyLossFlat\(ignore_index=1\)'))

@pytest.mark.parametrize('kind', padded_losses)
def test_losses_that_count_padding(make, kind):
    "Are refused with the loss to take"
    loss,remedy = padded_losses[kind]
    with pytest.raises(ValueError, match=f'counts padding.*give {remedy}'): make(loss_func=loss())

class Masked(nn.CrossEntropyLoss):
    "A cross-entropy that leaves padding out by itself"
    def forward(self, pred, targ): return F.cross_entropy(pred.flatten(0, 1), targ.flatten(), ignore_index=PAD_)

def test_padding_of_weight_0(make):
    "The loss is the usual one, however the texts come in batches"
    unpadded = (torch.arange(len(make().dls.vocab[1])) != PAD_).float()
    learn,usual = make(loss_func=CrossEntropyLossFlat(weight=unpadded)), make(loss_func=CrossEntropyLossFlat(ignore_index=PAD_))
    usual.model.load_state_dict(learn.model.state_dict())
    for bs in (20,4): assert learn.validate(dl=learn.dls.valid.new(bs=bs))[0] == pytest.approx(usual.validate()[0], rel=1e-5)

def own_loss(pred, targ): return F.cross_entropy(pred.flatten(0, 1), targ.flatten(), ignore_index=PAD_)

def test_own_loss_trains(make):
    "A loss that does not say what it ignores is left alone"
    for loss in (own_loss, Masked()): make(loss_func=loss).fit(1)

def test_bleu(make, monkeypatch):
    "The metric is sacrebleu's on what the model writes"
    learn = make(metrics=SacreBLEU(n_tokens=9))
    learn.fit(1, 1e-2)
    df = pairs_df()
    df = df[df.is_valid]
    want = sacrebleu.corpus_bleu(learn.predict(df, n_tokens=9), [list(df.tgt)]).score
    assert math.isclose(learn.recorder.values[-1][-1], want, rel_tol=1e-6) and learn.recorder.metric_names[3] == 'bleu'
    with pytest.raises(TypeError): SacreBLEU(n_token=9)
    for kw,match in ((dict(n_samples=2), 'n_samples=2'), (dict(temperature=-1), 'temperature=-1'), (dict(num_beams=2, top_k=3), 'leave out top_k=3')):
        with pytest.raises(ValueError, match=match): SacreBLEU(**kw)
    metric,count = learn.metrics[0],len(learn.metrics[0].written)
    learn.get_preds()
    assert len(metric.written) == count == 12                               # nothing is written for log-probabilities
    assert 'written' not in vars(pickle.loads(pickle.dumps(metric)))
    upper = SacreBLEU(n_tokens=9, decoder=lambda toks: ['same']*5)
    words = quiet(transformer_seq2seq_learner(Seq2SeqDataLoaders.from_df(df.assign(is_valid=[True]*4+[False]*8), tok_tfm=BaseTokenizer(), min_freq=1, **{**KW, 'bs':4}), **SMALL, metrics=upper))
    assert math.isclose(words.validate()[1], 100)                                          # predictions and targets are decoded alike
    monkeypatch.setitem(sys.modules, 'sacrebleu', None)
    with pytest.raises(ImportError, match='pip install sacrebleu'): SacreBLEU()

def test_get_preds(make):
    "Log-probabilities of each target, in the order of the data"
    learn = make()
    logp,targs = learn.get_preds()
    assert len(logp) == 12
    model = learn.model.cpu()
    for row,t,(src,tgt) in zip(logp, targs, learn.dls.valid_ds):
        src,tgt = src.as_subclass(torch.Tensor)[None],tgt.as_subclass(torch.Tensor)[None]
        want = target_logprobs(model(src, tgt[:,:-1]), tgt[:,1:])[0]
        n = tgt.shape[1]-1
        close(row[:n], want.detach()); assert t[:n].equal(tgt[0,1:]) and not row[n:].any() and (t[n:] == PAD_).all()
    with pytest.raises(TypeError, match='with_loss'): learn.get_preds(with_loss=True)
    with pytest.raises(ValueError, match='no targets'): learn.get_preds(dl=learn.dls.test_dl(['Ab']))
    assert learn.validate(dl=learn.dls.test_dl(pairs_df()[:9], with_labels=True))[0] > 0

def test_fastai_calls(make, capsys):
    "lr_find, summary, discriminative rates, the callbacks' order, mixed precision, show_results"
    learn = make()
    assert learn.lr_find(show_plot=False).valley > 0
    assert 'Total params' in str(learn.summary())
    learn.fit_one_cycle(1, slice(1e-4,1e-3)); learn.to_bf16(); learn.fit_one_cycle(1, 1e-3); learn.to_fp32()
    learn.fine_tune(1, 1e-3)
    capsys.readouterr()
    learn.show_results(max_n=3, shuffle=False)
    out = capsys.readouterr().out
    df = pairs_df()
    assert out.split()[:3] == ['source','target','prediction'] and all(t in out for t in df[df.is_valid].src[:3])
    learn.show_results(0, max_n=50)
    assert len(capsys.readouterr().out.splitlines()) >= 49
    learn.show_results(dl=learn.dls.test_dl(['Ab','cde']))
    assert 'target' not in capsys.readouterr().out

@pytest.mark.parametrize('kw,match', [(dict(n_samples=2), 'n_samples=2: the table shows one text'), (dict(max_n=0), 'max_n=0 is out of range: .*1 or more')])
def test_show_results_options(make, kw, match):
    with pytest.raises(ValueError, match=match): make().show_results(**kw)

def test_stop_early(make, tmp_path):
    "A callback that watches BLEU"
    learn = make(metrics=SacreBLEU(n_tokens=5), cbs=SaveModelCallback(monitor='bleu', fname='best'))
    learn.fit(2, 1e-3)
    assert (tmp_path/'models'/'best.pth').exists()

def test_length_follows_the_data(tmp_path):
    "Characters written from words are many: the limit comes from the training pairs"
    df = pd.DataFrame(dict(src=['eins zwei drei']*40, tgt=['abcdefghij'*9]*40, is_valid=[i%5 == 0 for i in range(40)]))
    dls = Seq2SeqDataLoaders.from_df(df, tok_tfm=(BaseTokenizer(), CharTokenizer()), **{**KW, 'bs':4})
    learn = quiet(transformer_seq2seq_learner(dls, **SMALL))
    learn.fit(25, 1e-2)
    assert learn.predict('eins zwei drei') == 'abcdefghij'*9
    for beams in (1,3):
        longer = learn.predict(['eins zwei drei']*2, n_tokens=97, min_tokens=95, num_beams=beams)
        assert all(95 <= len(o) <= 97 for o in longer)
    assert learn.predict('eins zwei drei', n_tokens=5, min_tokens=50) == 'abcde'

def test_freeze(make):
    "Frozen groups stay; thawed ones learn"
    learn = make(n_layers=2)
    learn.freeze()
    before = weights(learn)
    learn.fit(1, 1e-2)
    names = changed(learn, before)
    assert names and not [n for n in names if n.startswith('encoder.blocks')]
    learn.unfreeze()
    learn.fit(1, 1e-2)
    assert changed(learn, before) == set(before)

def test_a_model_to_start_from(make, pdf, capsys):
    "The rows of the targets' tokens have no names: they come along with the sources' vocabulary alone, and where both are one, with the encoder"
    moved = pdf.replace(dict(src=dict(h='q'), tgt=dict(h='q')), regex=True)
    for shared in (False, True):
        dls,other = (Seq2SeqDataLoaders.from_df(o, tok_tfm=CharTokenizer(), share_vocab=shared, **KW) for o in (pdf, moved))
        a = make(dls=dls).model
        old,new = pair_vocabs(dls)[0], pair_vocabs(other)[0]
        a.vocab = old
        assert len(old) == len(new) and old != new
        again,b = (make(dls=o, pretrained=a).model for o in (dls, other))
        for k,v in a.state_dict().items(): assert again.state_dict()[k].equal(v), k
        assert ('new, because' in capsys.readouterr().out) == (not shared)
        for i,t in enumerate(new): assert len(t) > 1 or t == 'q' or b.encoder.emb.weight[i].equal(a.encoder.emb.weight[old.index(t)])
        assert shared or not b.decoder.emb.weight.equal(a.decoder.emb.weight)
        assert b.decoder.norm.weight.equal(a.decoder.norm.weight) and (b.head.weight is b.encoder.emb.weight) == shared

@pytest.mark.parametrize('kind', ['lm','clf'])
def test_transfer(make, pdf, tmp_path, kind):
    "An encoder comes from a language model or a classifier of the sources, token by token"
    df = pdf.assign(text=pdf.src, label=['a','b']*30)
    factory = transformer_lm_learner if kind == 'lm' else transformer_classifier_learner
    other = factory(TextDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', is_lm=kind == 'lm', seq_len=8, bs=4, tok_tfm=CharTokenizer()),
                    **{**SMALL, 'path':tmp_path})
    other.save_encoder('enc')
    learn = make(pretrained='enc')
    for a,b in zip(other.model.encoder.blocks.parameters(), learn.model.encoder.blocks.parameters()): assert a.equal(b)
    old,new = other.dls.vocab[0] if kind == 'clf' else other.dls.vocab,pair_vocabs(learn.dls)[0]
    assert (learn.model.encoder.emb.weight[new.index('h')]*4).equal(other.model.encoder.emb.weight[old.index('h')]) # which are scaled by √16 here
    both = [t for t in old if t in new and t != 'xxpad'][:6]
    x,y = (torch.tensor([[v.index(t) for t in both]]) for v in (new,old))
    with torch.no_grad(): assert kind == 'lm' or learn.model.encoder.eval()(x).equal(other.model.encoder.eval()(y)) # a causal one hides what comes after
    assert not next(learn.model.encoder.blocks.parameters()).requires_grad and learn.model.head.weight.requires_grad

def test_warmup(make):
    "The paper's schedule: eq. 3, with its own rate where none is given"
    learn = make()
    learn.fit_warmup(2, warmup=4)
    n = len(learn.recorder.lrs)
    want = [16**-0.5*min(s**-0.5, s*4**-1.5) for s in range(1, n+1)]
    assert np.allclose(learn.recorder.lrs, want)
    whole,parts = make(),make()
    whole.fit_warmup(3, 0.1, warmup=4)
    parts.fit_warmup(1, 0.1, warmup=4); first = parts.recorder.lrs
    parts.fit_warmup(3, 0.1, warmup=4, start_epoch=1)
    assert np.allclose(first + parts.recorder.lrs, whole.recorder.lrs)
    learn.fit_warmup(1, 0.1, warmup=2)
    assert np.isclose(max(learn.recorder.lrs), 0.1)
    with pytest.raises(ValueError, match='warmup=0'): learn.fit_warmup(1, warmup=0)

def test_warmup_of_a_part(make):
    "The steps that are taken count, also where a callback leaves one process of several its part of the batches"
    learn = make()
    n = len(learn.dls.train)//2
    class Batches(list):
        def __getattr__(self, name): return getattr(learn.dls.valid, name)
    class Part(Callback):
        def before_fit(self): self.dls.loaders[0] = Batches([*self.dls.train][:n])
    learn.fit_warmup(1, 0.1, warmup=2, cbs=Part())
    assert n > 2 and np.allclose(learn.recorder.lrs, [0.1*min(s/2, (2/s)**0.5) for s in range(1, n+1)])

def test_predict(make):
    "One text, a list, a series, a frame; samples; beams; batches and their size change nothing"
    learn,texts = make(),['Ab cde','h','','zz 漢字 🙂','h '*40]
    one = [learn.predict(t) for t in texts]
    assert all(isinstance(o, str) for o in one)
    for item in (texts, pd.Series(texts), pd.DataFrame(dict(src=texts))): assert learn.predict(item) == one
    assert learn.predict(texts, bs=2) == one and learn.predict(texts, cache=False) == one
    assert learn.predict(pd.DataFrame(dict(de=texts)), text_col='de') == one
    assert learn.predict(texts, num_beams=1) == one and len(learn.predict(texts, num_beams=3)) == 5
    a = learn.predict(texts, temperature=1., n_samples=3, seed=0)
    assert a == learn.predict(texts, temperature=1., n_samples=3, seed=0) and [len(o) for o in a] == [3]*5
    assert isinstance(learn.predict('h', temperature=1., n_samples=2)[0], str)
    assert len(set(learn.predict(['Ab cde']*8, temperature=1., seed=0, bs=2))) > 4            # one draw after another, not one in each batch
    assert len(set(learn.predict('Ab cde', n_samples=8, seed=0))) > 4                         # samples are sampled
    assert learn.predict('Ab cde', top_k=1) == learn.predict('Ab cde')
    assert learn.predict(texts, n_tokens=0) == ['']*5 and all(len(o) <= 2 for o in learn.predict(texts, n_tokens=2))

def test_predict_ends(make):
    "A text ends with `xxeos`, or when it is twice as long as its source and twenty tokens more"
    learn = make()
    vocab = pair_vocabs(learn.dls)[1]
    def always(token):
        with torch.no_grad():
            learn.model.head = nn.Linear(16, len(vocab))
            learn.model.head.weight.zero_(); learn.model.head.bias.zero_(); learn.model.head.bias[vocab.index(token)] = 9.
    always('h')
    assert learn.predict(['h','hh']) == ['h'*(2*3+20), 'h'*(2*4+20)]
    always('xxeos')
    assert learn.predict(['h','hh'], num_beams=1) == ['','']
    for t in ('xxpad','xxbos','xxunk','xxfld'): always(t); assert t not in learn.predict('h', n_tokens=5)

@pytest.fixture(scope='module', params=['characters','words'])
def speller(request, pdf, tmp_path_factory):
    "It has learnt to write backwards, by characters and by words"
    tok = dict(characters=CharTokenizer, words=BaseTokenizer)[request.param]()
    dls = Seq2SeqDataLoaders.from_df(pdf, tok_tfm=tok, rules=[], min_freq=1, **KW)
    set_seed(0)
    learn = quiet(transformer_seq2seq_learner(dls, **{**SMALL, 'd_model':32, 'path':tmp_path_factory.mktemp('speller')}))
    learn.fit(15, 1e-2)
    return learn

def before(text, *stop): return text[:min([i for i in map(text.find, stop) if i >= 0], default=len(text))]

def test_stop(speller):
    "A text ends before the first of the strings, of one source or of many, greedy, sampled and searched; never met, they change nothing"
    learn,texts = speller,['Ab cde','h fg','cde Ab h','']
    for kw in (dict(), dict(seed=1, top_k=9), dict(seed=2, n_samples=3), dict(n_tokens=4)):
        whole = learn.predict(texts, **kw)
        for stop in (('edc','gf'), ('dc b',), (' ',), ('b','A'), ('zz',)):
            want = [[before(o, *stop) for o in w] if isinstance(w, list) else before(w, *stop) for w in whole]
            assert learn.predict(texts, stop=[*stop], **kw) == want
    assert any(' ' in o for o in whole) and learn.predict(texts[0], stop=' ') == before(learn.predict(texts[0]), ' ')
    for beams in (1,4):
        got = learn.predict(texts, stop=[' ','e'], num_beams=beams)
        assert any(got) and not any(s in o for o in got for s in ' e')
        assert learn.predict(texts, stop='zz', num_beams=beams) == learn.predict(texts, num_beams=beams)

def test_stream_text(speller):
    "What `predict` gives, piece by piece, a token at a time and none more than is asked for; a stop string is held back while it may come"
    learn,count = speller,[]
    for kw in (dict(), dict(seed=3, temperature=1.5), dict(seed=4, top_k=5, min_tokens=9), dict(stop=['dc','b A']), dict(n_tokens=3), dict(n_tokens=0), dict(cache=False),
               dict(seed=5, rep_penalty=1.3, no_unk=False), dict(num_beams=1, n_samples=1), dict(decoder=lambda toks: [t.upper() for t in toks])):
        for t in ('Ab cde','h fg h','','zz 漢字'):
            pieces = list(learn.stream_text(t, **kw))
            assert ''.join(pieces) == learn.predict(t, **kw) and all(pieces)
    assert len(list(learn.stream_text('Ab cde'))) > 1
    assert not any('d' in p for p in learn.stream_text('Ab cde', stop='d'))
    stream = learn.stream_text('Ab cde')
    first = next(stream)
    assert learn.predict('Ab cde').startswith(first) and learn.predict('Ab cde') == first + ''.join(stream) # others may ask meanwhile

@pytest.mark.parametrize('kw,error,match', [(dict(num_beams=3), ValueError, 'num_beams=3: .*leave it out, or use predict'), (dict(n_samples=2), ValueError, 'n_samples=2: .*once for each'), (dict(stop=''), ValueError, "stop=''"),
                                            (dict(temperature=-1), ValueError, 'temperature=-1'), (dict(n_tokens=-1), ValueError, 'n_tokens=-1'), (dict(topk=3), TypeError, "did you mean 'top_k'"), (dict(text_col='src'), TypeError, 'text_col')])
def test_stream_text_errors(make, kw, error, match):
    "At the call, before the first piece"
    with pytest.raises(error, match=match): make().stream_text('h', **kw)

def test_stream_text_of_one(make):
    learn = make()
    for item in (['h'], pd.Series(['h']), dict(src='h')):
        with pytest.raises(TypeError, match='one str'): learn.stream_text(item)
    with pytest.raises(ValueError, match='stop='): learn.predict('h', stop=['a',''])
    with pytest.raises(ValueError, match='stop='): SacreBLEU(stop='')
    with pytest.raises(TypeError, match='use its own .*`stream_text`'): stream_text(learn, 'h')

@pytest.mark.parametrize('kw,match', [(dict(temperature=-1), 'temperature=-1'), (dict(n_tokens=-1), 'n_tokens=-1'), (dict(num_beams=0), 'num_beams=0'), (dict(top_p=2), 'top_p=2'), (dict(bs=0), 'bs=0.*texts in a batch'), (dict(bs=-1), 'bs=-1'),
                                      (dict(num_beams=2, top_k=3), 'leave out top_k=3'), (dict(num_beams=2, n_samples=2), 'leave out n_samples=2'), (dict(num_beams=2, temperature=0.5), 'leave out temperature')])
def test_predict_errors(make, kw, match):
    with pytest.raises(ValueError, match=match): make().predict('h', **kw)

def test_seed_of_a_search(make):
    "The error names the seed as it was given"
    with pytest.raises(ValueError, match='leave out seed=3$'): make().predict('h', num_beams=2, seed=3)

@pytest.mark.parametrize('src,error,match', [(torch.tensor([2,5,3]), ValueError, r'shape \(3,\)'), (torch.zeros(0, 3, dtype=torch.long), ValueError, r'shape \(0, 3\)'),
                                             ([2,5,3], ValueError, r'shape \(3,\)')], ids=['one','none','list'])
def test_write_errors(make, src, error, match):
    with pytest.raises(error, match=f'{match}.*learn.codec.encode'): make().write(src)

def test_write_takes_lists(make):
    learn = make()
    assert learn.write([[2,5,3]]) == learn.write(torch.tensor([[2,5,3]]))
    with pytest.raises(TypeError, match='table'): learn.write([[2,5,3],[2,3]])

@pytest.mark.parametrize('call', [text_logprobs, perplexity])
def test_likelihood_needs_a_source(make, call):
    with pytest.raises(TypeError, match='source.*get_preds'): call(make(), 'Ab cde')

def test_predict_of_tokens(make, pdls):
    "The loaders' own frame of tokens, a column, a row and a dictionary of it: as the texts"
    learn,items = make(),pdls.valid_ds.items
    want = learn.predict([*items.src])
    assert learn.predict(items) == learn.predict(items, text_col='src') == learn.predict(items.src) == want
    assert learn.predict(items[['tgt','src']].iloc[1]) == learn.predict(items.iloc[1].to_dict()) == want[1]

def test_predict_types(make):
    learn = make()
    with pytest.raises(TypeError): learn.predict('h', tempreature=1)
    with pytest.raises(TypeError, match='number 1 is None'): learn.predict(['h',None])
    with pytest.raises(ValueError, match='no text'): learn.predict([])
    with pytest.raises(ValueError, match="'src'"): learn.predict(pd.DataFrame(dict(de=['h'])))
    with pytest.raises(TypeError, match="'d_modle' .*'d_model'"): make(d_modle=3)
    for k,v in dict(causal=True, pool='first', token_p=0.5, n_out=3).items():
        with pytest.raises(TypeError, match=f"'{k}' is neither a field of TransformerConfig that this model uses"): make(**{k:v})
    with pytest.raises(TypeError, match='use its own `predict`'): predict(learn, 'h')
    with pytest.raises(TypeError, match='SampleText continues a prompt'): make(cbs=SampleText('h')).fit(1)

def test_encode(make):
    "States, their mean, the last cross-attention and its weights; the model is as it was"
    learn = make(n_heads=2)
    modes = [m.training for m in learn.model.modules()]
    e = learn.encode(['Ab','h cde'], ['bA','x'])
    src = encode_text(learn, ['h cde'])[0][None]
    close(e.states[1], learn.model.eval().encode(src)[0][0].detach())
    close(e.pooled, torch.stack([s.mean(0) for s in e.states]))
    assert e.tokens[1] == ['xxbos','h','▁','c','d','e','xxeos'] and e.target[0] == ['b','A','xxeos']
    for w,c,t,s in zip(e.weights, e.cross, e.target, e.tokens):
        assert w.shape == (2,len(t),len(s)) and c.shape == (len(t),16)
        close(w.sum(-1), torch.ones(2, len(t)))
    assert not [m for m in learn.model.modules() if m._forward_hooks] and modes == [m.training for m in learn.model.train().modules()]
    assert learn.encode('Ab').cross is None
    df = pairs_df()[:2]
    assert [len(c) for c in learn.encode(df, df).cross] == [1+len(t) for t in df.tgt]
    with pytest.raises(ValueError, match='1 targets for 2 texts'): learn.encode(['a','b'], ['c'])

@pytest.mark.parametrize('long', ['window','head','tail','head+tail'])
def test_encode_names_what_is_read(pdf, make, long):
    "A token for each state and column of the weights: of a cropped source those that are kept, and no padding"
    learn = make(dls=Seq2SeqDataLoaders.from_df(pdf, tok_tfm=BaseTokenizer(), **KW), max_len=4, long=long)
    vocab = learn.codec.vocab
    toks = ['xxbos', *[t for t in vocab if not t.startswith('xx')][:8], 'xxeos']
    want = dict(window=toks, head=toks[:4], tail=toks[-4:]).get(long, toks[:2]+toks[-2:])
    e = learn.encode(' '.join(['xxpad', *toks[1:-1], 'xxpad']), 'ab')
    assert e.tokens == want and e.states.shape[0] == e.weights.shape[-1] == len(want)
    close(e.states, learn.model.eval().encode(torch.tensor([[vocab.index(t) for t in toks]]))[0][0].detach())

def test_long_texts(make):
    "A source and a target beyond `max_len`"
    learn = make(max_len=8)
    assert isinstance(learn.predict('Ab cde fg '*20, n_tokens=30), str)
    learned = make(max_len=8, positions='learned')
    assert isinstance(learned.predict('Ab cde fg '*20, n_tokens=30), str)
    with pytest.raises(ValueError, match='learned positions end at max_len=8'): learned.validate()

@pytest.mark.parametrize('split', ['train','valid'])
@pytest.mark.parametrize('kind', ['pairs','block'])
def test_targets_beyond_learned_positions(split, kind, tmp_path):
    "Refused before the first step, wherever the long target is; one that just fits is learnt, and other positions cut none"
    df = pairs_df()
    at = df.index[df.is_valid == (split == 'valid')][3]
    df.loc[at,'tgt'] = 'h'*40
    if kind == 'pairs': dls = Seq2SeqDataLoaders.from_df(df, tok_tfm=CharTokenizer(), **KW)
    else: dls = DataBlock((SequenceBlock(CharTokenizer()), SequenceBlock(CharTokenizer())), get_x=ColReader('src'), get_y=ColReader('tgt'), splitter=ColSplitter()).dataloaders(df, bs=4, num_workers=0)
    make = lambda **kw: quiet(transformer_seq2seq_learner(dls, **{**SMALL, 'path':tmp_path, **kw}))
    learn = make(positions='learned', max_len=40)
    before = weights(learn)
    for fit in (lambda: learn.fit(1, 1e-2), lambda: learn.fit_one_cycle(1, 1e-2), lambda: learn.lr_find(show_plot=False)):
        with pytest.raises(ValueError, match=rf'dls.{split}_ds.3. has 41 tokens.*end at max_len=40.*max_len=41.*rotary'): fit()
    assert not changed(learn, before)
    for kw in (dict(positions='learned', max_len=41), dict(max_len=5)):
        learn = make(**kw)
        learn.fit(1, 1e-2)
        assert (learn.get_preds(dl=dls[split == 'valid'].new(shuffle=False, drop_last=False))[0] < 0).sum(1).max() == 41

SCRIPT = """import sys
from fastai.text.all import load_learner
learn = load_learner(sys.argv[1])
print(learn.predict(['Ab cde','','zz']), learn.predict('h fg', num_beams=2))"""

@pytest.mark.parametrize('kind', ['characters','pieces'])
def test_export(pdf, tmp_path, kind):
    "Exported, and read in a fresh process: the same texts"
    dls = Seq2SeqDataLoaders.from_df(pdf, tok_tfm=toks[kind](), **KW)
    learn = quiet(transformer_seq2seq_learner(dls, **{**SMALL, 'path':tmp_path}))
    learn.fit(1, 1e-2)
    learn.export('m.pkl')
    want = f"{learn.predict(['Ab cde','','zz'])} {learn.predict('h fg', num_beams=2)}\n"
    res = subprocess.run([sys.executable, '-c', SCRIPT, str(tmp_path/'m.pkl')], capture_output=True, text=True)
    assert res.stdout == want, res.stderr
    back = load_learner(tmp_path/'m.pkl')
    for f in (back.get_preds, back.validate, back.show_results):
        with pytest.raises(ValueError, match='not one batch'): f()
    back.dls = dls
    assert math.isclose(back.validate()[0], learn.validate()[0], rel_tol=1e-5)

def test_codecs(pdf, pdls):
    "Those of both sides are kept in one place, while the loaders are the same, and are no part of a file"
    learn = quiet(transformer_seq2seq_learner(pdls, **SMALL))
    both = learn.codec, learn.target_codec
    assert all(codec_of(learn, i) is learn.side_codec(i) is codec for i,codec in enumerate(both))
    assert [k for k,o in vars(learn).items() if isinstance(o, tuple) and o and o[0] is pdls] == ['_codecs']
    assert '_codecs' not in learn.__getstate__()
    learn.dls = Seq2SeqDataLoaders.from_df(pdf, tok_tfm=CharTokenizer(), **KW)
    assert learn.codec is not both[0] and learn.target_codec is not both[1]

def test_own_arch(pdls, tmp_path):
    "A model of one's own in the same learner"
    class Own(Foreign):
        def __init__(self, config):
            super().__init__()
            self.emb,self.head = nn.Embedding(config.vocab_sz, 8),nn.Linear(8, config.tgt_vocab_sz)
    learn = quiet(transformer_seq2seq_learner(pdls, arch=Own))
    learn.fit(1, 1e-3)
    assert isinstance(learn.predict('Ab', num_beams=2), str)
    with pytest.raises(TypeError, match='Own has no `encode`'): learn.encode('Ab')

@pytest.mark.parametrize('preset', PRESETS)
def test_presets_train(pdls, preset, tmp_path):
    "Every preset trains, saves and loads"
    learn = quiet(transformer_seq2seq_learner(pdls, preset, d_model=16, n_heads=2, n_layers=1, path=tmp_path))
    before = learn.validate()[0]
    learn.fit(4, 5e-3)
    after = learn.validate()[0]
    assert after < before
    learn.save('m')
    other = quiet(transformer_seq2seq_learner(pdls, preset, d_model=16, n_heads=2, n_layers=1, path=tmp_path)).load('m')
    assert math.isclose(other.validate()[0], after, rel_tol=1e-5)
