"Models and tokenizers of Hugging Face: equal numbers, equal tokens, what is refused, and learners that start from them"
import sys; sys.modules.setdefault('torchvision', None) # `transformers` would import it, and it need not fit a CPU build of torch
import pickle, subprocess, textwrap
from functools import partial
import pandas as pd, pytest, tokenizers as tk, torch, torch.nn as nn
from fastai.text.all import RegressionBlock, TextDataLoaders, load_learner
from hypothesis import given, settings, strategies as st
from fastai_txf.text.special import text_vocab
from fastai_txf.text.codec import tokenize_like
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.generate.decode import generate
from fastai_txf.share.hf import from_hf, HFTokenizer
from fastai_txf.learn.transfer import remap_rows
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.model.stack import TransformerEncoder
from fastai_txf.model.models import (
    classifier_splitter, lm_splitter, TransformerClassifier, TransformerLM)
from fixtures import quiet, texts_df, weights

tr = pytest.importorskip('transformers')
close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=24, vocab_size=50)
ends = dict(bos_token_id=0, eos_token_id=0)

def rough(model):
    "`model` in `eval` with all of its weights random, the same ones each time, none small, so that whatever is passed on can be seen"
    torch.manual_seed(0)
    for k,p in model.named_parameters(): nn.init.normal_(p, mean=float(p.ndim==1 and k.endswith('weight')), std=0.3)
    return model.eval()

def gpt2(cls='GPT2LMHeadModel', **kw): return rough(getattr(tr, cls)(tr.GPT2Config(**{**sizes, **ends, **kw})))
def bert(cls='BertForSequenceClassification', **kw): return rough(getattr(tr, cls)(tr.BertConfig(**{**sizes, 'intermediate_size':24, 'num_labels':3, **kw})))

def ragged(lens, pad=0, vocab_sz=50):
    "Random ids with padding behind, and where they are real"
    real = torch.arange(max(lens)) < torch.tensor(lens)[:,None]
    return torch.randint(1, vocab_sz, real.shape).masked_fill(~real, pad), real

makers = dict(GPT2LMHeadModel=(TransformerLM, gpt2), GPT2Model=(TransformerEncoder, partial(gpt2, 'GPT2Model')),
              BertModel=(TransformerEncoder, partial(bert, 'BertModel')), BertForSequenceClassification=(TransformerClassifier, bert))
each_model = pytest.mark.parametrize('expected,make', makers.values(), ids=makers)

def answers(model, x, real):
    "What `model` of Hugging Face says, as one of this library says it"
    out = model(x, attention_mask=real.long())
    return out.logits if hasattr(out, 'logits') else out.last_hidden_state

# The numbers

acts = ['gelu','gelu_new','gelu_pytorch_tanh','gelu_fast','relu']
lengths = st.lists(st.integers(1,24), min_size=1, max_size=4)

@settings(max_examples=12)
@given(lengths, st.sampled_from(['GPT2LMHeadModel','GPT2Model']), st.sampled_from(acts), st.sampled_from([None,20]), st.booleans(), st.sampled_from([1e-5,1e-1]), st.sampled_from([1,2,4]))
def test_gpt2(lens, cls, act, n_inner, tie, eps, n_heads):
    "The same logits, or vectors, at every token of every text"
    theirs = gpt2(cls, activation_function=act, n_inner=n_inner, tie_word_embeddings=tie, layer_norm_epsilon=eps, num_attention_heads=n_heads)
    x,real = ragged(lens)
    with torch.no_grad(): close(from_hf(theirs)(x)[real], answers(theirs, x, real)[real])

@settings(max_examples=12)
@given(lengths, st.sampled_from(['BertModel','BertForSequenceClassification']), st.sampled_from(acts), st.sampled_from([1,2,3]), st.sampled_from([1e-12,1e-1]), st.integers(1,4), st.sampled_from([0,7]))
def test_bert(lens, cls, act, n_types, eps, n_out, pad):
    "The same vectors and logits, and whatever stands in the padding's row of the embeddings"
    theirs = bert(cls, hidden_act=act, type_vocab_size=n_types, layer_norm_eps=eps, num_labels=n_out, pad_token_id=pad)
    x,real = ragged(lens, pad)
    x[real & (x==pad)] = 1
    with torch.no_grad(): a,b = from_hf(theirs)(x),answers(theirs, x, real)
    close(*((a,b) if a.ndim==2 else (a[real],b[real])))

@given(st.lists(st.tuples(st.integers(0,5), st.integers(1,20), st.integers(0,5)), min_size=1, max_size=4))
@settings(max_examples=10)
def test_padding_anywhere(texts):
    "A batch with padding on both sides is, to a classifier, a list of texts alone"
    theirs,ours = bert(),from_hf(bert())
    rows = [torch.randint(1, 50, (n,)) for _,n,_ in texts]
    padded = [nn.functional.pad(r, (a,b)) for r,(a,_,b) in zip(rows, texts)]
    width = max(map(len, padded))
    batch = torch.stack([nn.functional.pad(o, (0,width-len(o))) for o in padded])
    with torch.no_grad(): close(ours(batch), torch.cat([theirs(r[None]).logits for r in rows]))

@pytest.mark.parametrize('make,names', [(gpt2, {'transformer.h.1.attn.c_attn.weight':'encoder.blocks.1.attn.fn.qkv.weight', 'transformer.wte.weight':'encoder.emb.weight', 'transformer.wpe.weight':'encoder.positions.emb.weight'}),
    (bert, {'bert.embeddings.LayerNorm.bias':'encoder.emb_norm.bias', 'bert.pooler.dense.weight':'pooler.0.weight', 'bert.embeddings.position_embeddings.weight':'encoder.positions.emb.weight'})])
def test_gradients(make, names):
    "The same gradients, so the same training"
    theirs,(x,real) = make(),ragged([9,9])
    ours = from_hf(theirs)
    answers(theirs, x, real).square().sum().backward()
    ours(x).square().sum().backward()
    ps,qs = dict(theirs.named_parameters()),dict(ours.named_parameters())
    for k,o in names.items():
        g = ps[k].grad
        close(qs[o].grad, g.T if 'c_attn' in k else g, atol=1e-3)

def test_long_texts():
    "A classifier reads as many tokens as BERT has positions, and a language model says where they end"
    theirs,x = bert(),torch.randint(1, 50, (2,60))
    with torch.no_grad(): close(from_hf(theirs)(x), theirs(x[:,:24]).logits)
    with pytest.raises(ValueError, match='max_len=24'): from_hf(gpt2())(x)

@pytest.mark.parametrize('n', [10,24,25,60])
def test_long_vectors(n):
    "A bare GPT-2, which has no number for padding, reads in windows what is longer than its positions"
    theirs,x = gpt2('GPT2Model'),torch.randint(0, 50, (2,n))
    h,real = from_hf(theirs).read(x)
    with torch.no_grad(): want = torch.cat([theirs(o).last_hidden_state for o in x.split(-(-n//-(-n//24)), 1)], 1)
    assert real.all()
    close(h, want)

# What was changed by hand

def agrees_or_names(theirs, part):
    "`from_hf` computes what the model does, or names what has no equivalent. True: it does"
    x,real = ragged([9,5])
    try: ours = from_hf(theirs)
    except ValueError as e:
        assert part in str(e), str(e)
        return False
    with torch.no_grad(): a,b = ours(x),answers(theirs, x, real)
    close(*((a,b) if a.ndim==2 else (a[real],b[real])))
    return True

@pytest.mark.parametrize('tied', [True,False])
def test_head_by_hand(tied):
    "A head is its own, or the embeddings, whatever the configuration says"
    theirs = gpt2(tie_word_embeddings=not tied)
    theirs.lm_head.weight = theirs.transformer.wte.weight if tied else nn.Parameter(torch.randn(50, 16))
    assert agrees_or_names(theirs, '')
    ours = from_hf(theirs)
    assert ours.config.tie == (ours.head.weight is ours.encoder.emb.weight) == tied

def act(m): m.transformer.h[1].mlp.act = nn.ReLU()
def bert_act(m): m.bert.encoder.layer[0].intermediate.intermediate_act_fn = nn.ReLU()
def eps(m): m.transformer.ln_f.eps = 1.
def dropout(m): m.transformer.h[0].attn.resid_dropout.p = 0.5
def bert_eps(m): m.bert.embeddings.LayerNorm.eps = 1.
def bert_pooler(m): m.bert.pooler.activation = nn.ReLU()
def head_bias(m): m.lm_head = nn.Linear(16, 50)
def no_attention(m): m.transformer.h[0].attn = nn.Identity()
def config(m): m.config.activation_function = 'relu'
by_hand = [(gpt2,act,'h.1.mlp.act'), (bert,bert_act,'layer.0.intermediate.intermediate_act_fn'), (gpt2,eps,'ln_f is LayerNorm((16,), eps=1.0'), (gpt2,dropout,'p=0.5'), (bert,bert_eps,'embeddings.LayerNorm'),
           (bert,bert_pooler,'pooler.activation'), (gpt2,head_bias,'lm_head'), (gpt2,no_attention,'h.0.attn is Identity()'), (gpt2,config,'by the configuration ReLU()')]

@pytest.mark.parametrize('make,change,part', by_hand, ids=lambda o: getattr(o, '__name__', ''))
def test_changed_by_hand(make, change, part):
    "A part that is not what the configuration says is named"
    theirs = make()
    assert agrees_or_names(theirs, '')
    change(theirs)
    assert not agrees_or_names(theirs, part)

def test_changed_in_both():
    "Part and configuration together are an ordinary model"
    theirs = gpt2()
    for b in theirs.transformer.h: b.mlp.act = nn.ReLU()
    theirs.config.activation_function = 'relu'
    assert agrees_or_names(theirs, '') and from_hf(theirs).config.ff == 'relu'

def test_generate():
    "Greedily the same tokens, with a cache and without"
    theirs,x = gpt2(),torch.randint(1, 50, (3,4))
    want = theirs.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=18, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert len(want.unique()) > 5
    for cache in (True,False): assert torch.equal(generate(from_hf(theirs), x, 18, temperature=0, cache=cache), want)

# What carries over

@each_model
def test_kind(expected, make):
    "Each has its own here, in its mode, all real and trainable; no random numbers are drawn"
    theirs = make()
    state,ours = torch.get_rng_state(),from_hf(theirs.train())
    assert torch.equal(state, torch.get_rng_state()) and type(ours) is expected and ours.vocab is None
    assert all(m.training for m in ours.modules()) and not any(m.training for m in from_hf(theirs.eval()).modules())
    assert all(p.requires_grad and p.is_leaf and p.is_contiguous() and not p.is_meta for p in ours.parameters())

@each_model
def test_copies(expected, make):
    "Changing one changes not the other"
    theirs = make()
    before = [p.clone() for p in theirs.parameters()]
    for p in from_hf(theirs).parameters(): p.data.zero_()
    assert all(map(torch.equal, before, theirs.parameters()))

@each_model
@pytest.mark.parametrize('dtype', [torch.float64,torch.bfloat16])
def test_dtype(expected, make, dtype):
    "The precision is kept"
    assert {p.dtype for p in from_hf(make().to(dtype)).parameters()}=={dtype}

def test_double():
    "Nothing is rounded on the way"
    for make in (gpt2,bert):
        theirs,(x,real) = make().double(),ragged([5,9])
        with torch.no_grad(): a,b = from_hf(theirs)(x),answers(theirs, x, real)
        torch.testing.assert_close(*((a,b) if a.ndim==2 else (a[real],b[real])), atol=1e-10, rtol=1e-10)

def test_sizes():
    "As many parameters, but for BERT's token types"
    n = lambda m: sum(p.numel() for p in m.parameters())
    assert n(from_hf(gpt2()))==n(gpt2()) and n(from_hf(bert()))==n(bert())-2*16

def test_tied():
    "A shared weight stays shared, one of its own stays its own"
    for tie in (True,False):
        ours = from_hf(gpt2(tie_word_embeddings=tie))
        assert (ours.head.weight is ours.encoder.emb.weight)==tie

def test_dropout():
    "Every dropout has its rate"
    c = from_hf(gpt2(resid_pdrop=0.2, embd_pdrop=0.3, attn_pdrop=0.4)).config
    assert (c.p,c.emb_p,c.attn_p,c.ff_p)==(0.2,0.3,0.4,0)
    kw = dict(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    for head_p,want in ((None,0.2), (0.4,0.4)):
        c = from_hf(bert(**kw, classifier_dropout=head_p)).config
        assert (c.p,c.emb_p,c.attn_p,c.head_p)==(0.2,0.2,0.3,want)

def test_groups():
    "Every parameter is in one group; the norm of the embeddings is frozen with them"
    for model,splitter,n in ((from_hf(bert()),classifier_splitter,4), (from_hf(gpt2()),lm_splitter,4)):
        groups = splitter(model)
        assert len(groups)==n and sorted(id(p) for g in groups for p in g)==sorted(map(id, model.parameters()))
    model = from_hf(bert())
    assert any(p is model.encoder.emb_norm.weight for p in classifier_splitter(model)[0])
    assert any(p is model.pooler[0].weight for p in classifier_splitter(model)[-1])

# What is refused

refused = [(gpt2, dict(scale_attn_weights=False)), (gpt2, dict(scale_attn_by_inverse_layer_idx=True)), (gpt2, dict(add_cross_attention=True)), (gpt2, dict(activation_function='silu')),
           (bert, dict(position_embedding_type='relative_key')), (bert, dict(is_decoder=True)), (bert, dict(hidden_act='quick_gelu'))]

@pytest.mark.parametrize('make,kw', refused, ids=lambda o: next(iter(o)) if isinstance(o, dict) else o.__name__)
def test_refused_settings(make, kw):
    "Settings without an equivalent are named, with their values"
    (k,v), = kw.items()
    with pytest.raises(ValueError, match=f'{k}={v!r}'): from_hf(make(**kw))

def test_refused_models():
    "So are other architectures, with what to give instead"
    with pytest.raises(ValueError, match='BertForNextSentencePrediction.*GPT2LMHeadModel.*such as its `.bert`'): from_hf(bert('BertForNextSentencePrediction'))
    with pytest.raises(ValueError, match='GPT2ForSequenceClassification.*such as its `.transformer`'): from_hf(gpt2('GPT2ForSequenceClassification', pad_token_id=0))
    for o in (nn.Linear(2,3), tr.ElectraModel(tr.ElectraConfig(embedding_size=8, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=20)), 'bert-base-uncased'):
        with pytest.raises(ValueError, match=f'{type(o).__name__}: give a GPT2LMHeadModel'): from_hf(o)
    x,real = ragged([5,9])
    theirs = bert('BertForMaskedLM')
    with torch.no_grad(): close(from_hf(theirs.bert)(x)[real], theirs.bert(x, attention_mask=real.long()).last_hidden_state[real])

# The tokens

df = texts_df(40)
corpus = df.text.tolist() + ['A Łódź café, naïve – “quoted” (text)…', 'x = a_b[3] # ok? 1,000 %']*5

def train(model, trainer, pre, decoder, **parts):
    "A tokenizer of the package `tokenizers`"
    t = tk.Tokenizer(model)
    t.pre_tokenizer,t.decoder = pre,decoder
    for k,v in parts.items(): setattr(t, k, v)
    t.train_from_iterator(corpus, trainer)
    return t

@pytest.fixture(scope='session')
def wp():
    "BERT's kind"
    special = ['[PAD]','[UNK]','[CLS]','[SEP]','[MASK]']
    t = train(tk.models.WordPiece(unk_token='[UNK]'), tk.trainers.WordPieceTrainer(vocab_size=150, show_progress=False, special_tokens=special),
              tk.pre_tokenizers.BertPreTokenizer(), tk.decoders.WordPiece(), normalizer=tk.normalizers.BertNormalizer())
    t.post_processor = tk.processors.TemplateProcessing(single='[CLS] $A [SEP]', special_tokens=[('[CLS]',2), ('[SEP]',3)])
    return tr.PreTrainedTokenizerFast(tokenizer_object=t, pad_token='[PAD]', unk_token='[UNK]', cls_token='[CLS]', sep_token='[SEP]', mask_token='[MASK]')

def byte_pairs(**kw):
    end,alphabet = '<|endoftext|>',sorted(tk.pre_tokenizers.ByteLevel.alphabet())
    trainer = tk.trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=[end], initial_alphabet=alphabet)
    t = train(tk.models.BPE(), trainer, tk.pre_tokenizers.ByteLevel(add_prefix_space=False), tk.decoders.ByteLevel())
    return tr.PreTrainedTokenizerFast(tokenizer_object=t, **{**dict(bos_token=end, eos_token=end, unk_token=end), **kw})

@pytest.fixture(scope='session')
def bpe():
    "GPT-2's kind"
    return byte_pairs()

@pytest.fixture(params=['wp','bpe'])
def hf(request): return request.getfixturevalue(request.param)

def numbers(tok, text):
    vocab = tok.vocab
    return [vocab.index(t) for toks in tok([text]) for t in toks]

@settings(max_examples=60)
@given(text=st.text(max_size=40) | st.sampled_from(['a film [SEP] with [MASK] and <|endoftext|>', 'xxbos xxpad', 'A café', ' a  b\n']))
def test_same_numbers(wp, bpe, text):
    "The numbers are theirs, in order; a text without tokens is the one that begins texts"
    for hf in (wp,bpe): assert numbers(HFTokenizer(hf), text)==(hf(text)['input_ids'] or [hf.bos_token_id])

def test_many_at_once(hf):
    "Texts one by one, many, or from a generator"
    tok,texts = HFTokenizer(hf),corpus*30
    assert len(texts) > 1000
    all_at_once = list(tok(texts))
    assert all_at_once==list(tok(t for t in texts))
    assert all_at_once[:20]==[toks for t in texts[:20] for toks in tok([t])] and list(tok([]))==[]

def test_vocab(wp, bpe):
    "Every token under one name at its number; special ones under fastai's"
    for hf,extra in ((wp,0), (bpe,1)):
        vocab = HFTokenizer(hf).vocab
        assert len(vocab)==len(set(vocab))==len(hf)+extra
        assert all(vocab[i]==t for t,i in hf.get_vocab().items() if t not in hf.all_special_tokens)
    vocab = HFTokenizer(wp).vocab
    assert [vocab.index(t) for t in ('xxpad','xxunk','xxbos','xxeos','[MASK]')]==[0,1,2,3,4]
    vocab = HFTokenizer(bpe).vocab
    assert vocab[0]=='xxbos' and vocab[-1]=='xxpad' and not {'xxeos','xxunk'} & {*vocab}

def test_vocab_names():
    "Padding that is another token too is none; two names never fall together; holes are filled"
    assert HFTokenizer(byte_pairs(pad_token='<|endoftext|>')).vocab==HFTokenizer(byte_pairs()).vocab
    t = byte_pairs()
    t.add_tokens(['two words','two▁words','xxpad','xxbos'])
    tok = HFTokenizer(t)
    assert len(tok.vocab)==len(set(tok.vocab))==len(t)+1 and tok.vocab[-5:]==['two▁words','two▁words▁','xxpad▁','xxbos▁','xxpad']
    for text in ('two words xxpad two▁words', 'xxbos'): assert numbers(tok, text)==t(text)['input_ids']

def test_detokenize(wp, bpe):
    "Back to the text: byte pairs exactly, special tokens left out"
    for text in ('The music – naïve, 🙂', ' x\n', ''):
        for bos in (True,False):
            tok = HFTokenizer(bpe, bos=bos)
            assert tok.detokenize(next(tok([text])))==text
    tok = HFTokenizer(wp)
    assert tok.detokenize(next(tok(['A lovely film']) ))==wp.decode(wp('A lovely film')['input_ids'], skip_special_tokens=True)=='a lovely film'

def test_max_len(hf):
    "Cut as they cut"
    for n in (3,7):
        for t in corpus[:10]: assert numbers(HFTokenizer(hf, max_len=n), t)==hf(t, truncation=True, max_length=n)['input_ids']
    for n in (0,-1):
        with pytest.raises(ValueError, match=f'max_len={n} leaves no room'): HFTokenizer(hf, max_len=n)

def test_max_len_room(wp):
    with pytest.raises(ValueError, match='max_len=2 leaves no room for text beside 2'): HFTokenizer(wp, max_len=2)

def test_bos(wp, bpe):
    "`xxbos` in front of every text, once"
    a,b = HFTokenizer(bpe),HFTokenizer(bpe, bos=True)
    for t in corpus[:5]: assert next(b([t]))==['xxbos', *next(a([t]))]
    assert list(b(['']))==[['xxbos']]
    assert list(HFTokenizer(wp, bos=True)(corpus))==list(HFTokenizer(wp)(corpus))
    bare = byte_pairs(bos_token=None, eos_token=None, unk_token=None)
    with pytest.raises(ValueError, match='no token that begins a text'): HFTokenizer(bare, bos=True)
    assert list(HFTokenizer(bare)(['']))==[['xxpad']]

def test_pickle(hf):
    "What comes out of a pickle cuts the same, whatever Hugging Face's tokenizer was asked for meanwhile"
    tok = HFTokenizer(hf)
    want = list(tok(corpus))
    hf(corpus, padding=hf.pad_token is not None, truncation=True, max_length=5) # leaves its settings in the backend
    assert list(tok(corpus))==want==list(pickle.loads(pickle.dumps(tok))(corpus))==list(HFTokenizer(hf)(corpus))

def test_refused_tokenizers(hf):
    "No rules, and no tokenizer that is not of this kind"
    with pytest.raises(ValueError, match='TransformerDataLoaders'): TextDataLoaders.from_df(df, text_col='text', label_col='label', tok_tfm=HFTokenizer(hf), text_vocab=HFTokenizer(hf).vocab)
    for o in ('bert-base-uncased', HFTokenizer(hf)):
        with pytest.raises(TypeError, match='no fast tokenizer'): HFTokenizer(o)
    with pytest.raises(TypeError): list(HFTokenizer(hf)(['a', None]))

# Learners

def loaders(hf, **kw):
    tok = HFTokenizer(hf, **{k:kw.pop(k) for k in ('max_len','bos') if k in kw})
    return TransformerDataLoaders.from_df(df, **{**dict(valid_col='is_valid', label_col=None if kw.get('is_lm') else 'label', tok_tfm=tok, text_vocab=tok.vocab, bs=8, num_workers=0), **kw})

@pytest.fixture(scope='session')
def dls(wp): return loaders(wp)

@pytest.fixture(scope='session')
def dls_lm(bpe): return loaders(bpe, is_lm=True, seq_len=16, bos=True)

@pytest.fixture
def clf(wp, dls, tmp_path):
    "A BERT and a learner that starts from it"
    theirs = bert(vocab_size=len(wp), num_labels=2, max_position_embeddings=64)
    return theirs, quiet(transformer_classifier_learner(dls, pretrained=from_hf(theirs), path=tmp_path))

def logits(learn, xb):
    with torch.no_grad(): return learn.model.eval().to(xb.device)(xb.as_subclass(torch.Tensor)).cpu()

def test_classifier(wp, clf, tmp_path):
    "The logits are Hugging Face's on its own batch; then it trains, and says the same after an export, in another process too"
    theirs,learn = clf
    texts = df.text[:9].tolist() + ['', 'zzz 🙂', 'A Film!']
    want = theirs(**wp(texts, padding=True, return_tensors='pt')).logits.detach()
    xb, = learn.dls.test_dl(tokenize_like(learn.dls, texts), bs=len(texts)).one_batch() # sorted by length
    by_ids = {tuple(ids):l for ids,l in zip(wp(texts)['input_ids'], want)}
    close(logits(learn, xb), torch.stack([by_ids[tuple(o[o != 0].tolist())] for o in xb.as_subclass(torch.Tensor)]))
    close(learn.predict(texts)[2], want.softmax(-1))
    before,loss = weights(learn),learn.validate()[0]
    learn.fit(1, 1e-3)
    changed = {k for k,p in weights(learn).items() if not p.equal(before[k])}
    assert changed=={'pooler.0.weight','pooler.0.bias','head.weight','head.bias'}
    learn.unfreeze()
    learn.fit_one_cycle(4, 1e-3)
    assert learn.validate()[0] < loss and not weights(learn)['encoder.emb_norm.weight'].equal(before['encoder.emb_norm.weight'])
    learn.export('clf.pkl')
    probs = learn.predict(texts)[2]
    torch.testing.assert_close(load_learner(tmp_path/'clf.pkl').predict(texts)[2], probs)
    fresh = f"""
    import sys; sys.modules.update(transformers=None, torchvision=None)
    from fastai.text.all import *
    print(*load_learner({str(tmp_path/'clf.pkl')!r}).predict({texts!r})[2].flatten().tolist())"""
    out = subprocess.run([sys.executable, '-W', 'ignore', '-c', textwrap.dedent(fresh)], check=True, capture_output=True, text=True).stdout
    torch.testing.assert_close(torch.tensor([float(o) for o in out.split()]).view_as(probs), probs)

def test_missing_package(clf, tmp_path):
    "The library imports neither `transformers` nor `tokenizers`; without them an exported learner loads, and its first text says what is missing"
    clf[1].export('clf.pkl')
    code = f"""
    import sys; sys.modules.update(transformers=None, tokenizers=None)
    from fastai.text.all import *
    from fastai_txf.all import *
    learn = load_learner({str(tmp_path/'clf.pkl')!r})
    try: learn.predict('a film')
    except ImportError as e: print(e)"""
    out = subprocess.run([sys.executable, '-W', 'ignore', '-c', textwrap.dedent(code)], check=True, capture_output=True, text=True).stdout
    assert 'pip install tokenizers' in out

def test_lm(bpe, dls_lm, tmp_path):
    "A language model goes on from GPT-2's logits, writes, saves its encoder and learns"
    theirs = gpt2(vocab_size=len(bpe), max_position_embeddings=32)
    learn = quiet(transformer_lm_learner(dls_lm, pretrained=from_hf(theirs), path=tmp_path))
    n,xb = len(bpe),dls_lm.one_batch()[0].as_subclass(torch.Tensor)
    assert len(text_vocab(dls_lm))==n+1 and learn.model.config.max_len==32 and learn.model.head.weight is learn.model.encoder.emb.weight
    close(logits(learn, xb)[...,:n], theirs(xb.cpu()).logits.detach())
    learn.unfreeze()
    loss = learn.validate()[0]
    learn.fit_one_cycle(2, 1e-2)
    assert learn.validate()[0] < loss and learn.predict('the film', n_tokens=8, temperature=0).startswith('the film')
    before = logits(learn, xb)
    learn.save_encoder('enc')
    again = transformer_lm_learner(dls_lm, learn.model.config, pretrained='enc', path=tmp_path)
    torch.testing.assert_close(logits(again, xb), before)

@pytest.mark.parametrize('tie', [True,False])
def test_lm_by_name(wp, bpe, dls_lm, tie):
    "Rows follow their tokens, on both sides of the model"
    theirs = from_hf(gpt2(vocab_size=len(bpe)+5, tie_word_embeddings=tie), bpe)
    assert theirs.vocab[-5:]==['xxpad']+['xxfake']*4
    learn = transformer_lm_learner(dls_lm, pretrained=theirs)
    new,n = text_vocab(dls_lm),len(bpe)+1
    torch.testing.assert_close(learn.model.encoder.emb.weight, theirs.encoder.emb.weight[:n])
    torch.testing.assert_close(learn.model.head.weight, theirs.head.weight[:n])
    other = TransformerDataLoaders.from_df(df, valid_col='is_valid', is_lm=True, tok_tfm=HFTokenizer(bpe), text_vocab=new[::-1], seq_len=16, bs=8, num_workers=0)
    turned = transformer_lm_learner(other, pretrained=theirs)
    torch.testing.assert_close(turned.model.head.weight, theirs.head.weight[:n].flip(0))
    torch.testing.assert_close(turned.model.encoder.emb.weight, theirs.encoder.emb.weight[:n].flip(0))
    x = dls_lm.one_batch()[0].as_subclass(torch.Tensor)
    torch.testing.assert_close(logits(turned, n-1-x).flip(-1), logits(learn, x), atol=1e-5, rtol=1e-5)

def test_other_outputs(wp, dls, capsys):
    "A head of another width is new, the pooler is not"
    theirs = bert(vocab_size=len(wp), num_labels=5)
    learn = transformer_classifier_learner(dls, pretrained=from_hf(theirs))
    assert learn.model.head.weight.shape==(2,16) and 'another shape or other tokens: head.weight, head.bias' in capsys.readouterr().out
    torch.testing.assert_close(learn.model.pooler[0].weight, theirs.bert.pooler.dense.weight)

def test_encoder_only(wp, dls):
    "A bare BERT gets the library's own head and reads whole texts"
    theirs = bert('BertModel', vocab_size=len(wp))
    learn = transformer_classifier_learner(dls, pretrained=from_hf(theirs))
    x,real = ragged([7,9], vocab_sz=len(wp))
    with torch.no_grad(): close(learn.model.eval().encoder(x)[real], theirs(x, attention_mask=real.long()).last_hidden_state[real])
    assert learn.model.config.pool=='mean+max' and learn.model.config.long=='window' and not learn.model.config.pooler

def test_gpt2_classifies(bpe, tmp_path):
    "GPT-2 under a classifier, left to right as it was trained; a number for each text, too"
    for kw in ({}, dict(label_col='score', y_block=RegressionBlock)):
        learn = quiet(transformer_classifier_learner(loaders(bpe, **kw), pretrained=from_hf(gpt2(vocab_size=len(bpe), max_position_embeddings=64)), path=tmp_path))
        learn.fit(1, 1e-3)
        assert learn.model.encoder.config.causal and learn.model.config.pad_idx==len(bpe)
        torch.testing.assert_close(learn.predict('a warm film')[2], learn.predict(['a warm film', df.text[3]])[2][0], atol=1e-5, rtol=1e-5)

def test_long_documents(wp, tmp_path):
    "Five thousand words, in one piece or cut by the tokenizer"
    theirs = bert(vocab_size=len(wp), num_labels=2)
    text = 'a warm film and a dull one '*700
    learn = transformer_classifier_learner(loaders(wp), pretrained=from_hf(theirs))
    ids = wp(text)['input_ids'][:24]
    close(learn.predict(text)[2], theirs(torch.tensor([ids])).logits[0].softmax(-1).detach())
    learn = transformer_classifier_learner(loaders(wp, max_len=24), pretrained=from_hf(theirs))
    close(learn.predict(text)[2], theirs(**wp(text, truncation=True, max_length=24, return_tensors='pt')).logits[0].softmax(-1).detach())

def test_options(wp, dls):
    "Dropout, pooling and length may differ from the pretrained model's, its shape may not; a preset beside it is one too many"
    model = from_hf(bert(vocab_size=len(wp)))
    learn = transformer_classifier_learner(dls, pretrained=model, p=0.3, head_p=0.5, drop_mult=0.5, pool='mean', pooler=False, max_len=20, long='window')
    c = learn.model.config
    assert (c.p,c.head_p,c.pool,c.max_len,c.n_out,c.eps)==(0.15,0.25,'mean',20,2,1e-12)
    torch.testing.assert_close(learn.model.encoder.positions.emb.weight, model.encoder.positions.emb.weight[:20])
    for k,v in dict(n_layers=3, d_model=32, n_heads=4, ff='relu', positions='rotary', wiring='pre', d_ff=8, emb_norm=False).items():
        with pytest.raises(ValueError, match='the model holds an encoder with'): transformer_classifier_learner(dls, pretrained=model, **{k:v})
    with pytest.raises(ValueError, match="config='bert' beside a pretrained model"): transformer_classifier_learner(dls, 'bert', pretrained=model)
    with pytest.raises(TypeError, match='n_haeds'): transformer_classifier_learner(dls, pretrained=model, n_haeds=2)

def test_vocabularies(wp, dls, df=df):
    "Numbers must agree; names may differ"
    with pytest.raises(ValueError, match=f'the model has 50 tokens without names and `dls` have {len(wp)}'): transformer_classifier_learner(dls, pretrained=from_hf(bert()))
    with pytest.raises(ValueError, match='without names'): transformer_classifier_learner(dls, pretrained=from_hf(bert(vocab_size=len(wp)+1)))
    model = from_hf(bert(vocab_size=len(wp)), HFTokenizer(wp))
    words = TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', bs=8, num_workers=0)
    learn = transformer_classifier_learner(words, pretrained=model)
    old,new = model.vocab,text_vocab(words)
    both = [t for t in new if t in old]
    assert {'xxbos','xxpad','film','warm'} <= {*both}
    for t in both: assert torch.equal(learn.model.encoder.emb.weight[new.index(t)], model.encoder.emb.weight[old.index(t)])

def test_models_without_names(dls, clf):
    "A model of another learner does not know its tokens, one from elsewhere is not converted; a failed load leaves a learner as it was"
    theirs,learn = clf
    with pytest.raises(TypeError, match='set `vocab`'): transformer_classifier_learner(dls, pretrained=learn.model)
    with pytest.raises(TypeError, match='BertForSequenceClassification is no model of this library.*from_hf'): transformer_classifier_learner(dls, pretrained=theirs)
    before = weights(learn)
    for wrong,error in ((nn.Linear(2,2),TypeError), (from_hf(bert()),ValueError), (from_hf(bert(vocab_size=theirs.config.vocab_size, num_hidden_layers=1)),ValueError)):
        with pytest.raises(error): learn.load_encoder(wrong)
    assert all(p.equal(before[k]) for k,p in weights(learn).items())

def test_load_encoder(clf, wp, dls):
    "A model into a learner that is there already, from a preset of the same shape"
    theirs,_ = clf
    c = from_hf(theirs).config
    learn = transformer_classifier_learner(dls, 'bert', d_model=c.d_model, n_heads=c.n_heads, n_layers=c.n_layers, d_ff=c.d_ff, max_len=c.max_len)
    assert learn.load_encoder(from_hf(theirs)) is learn
    xb = dls.one_batch()[0].cpu()
    with torch.no_grad(): a,b = learn.model.eval().encoder.read(xb),from_hf(theirs).encoder.read(xb)
    torch.testing.assert_close(a[0][a[1]], b[0][b[1]])
    assert type(learn.model) is TransformerClassifier and learn.model.state_dict().keys()==from_hf(theirs).state_dict().keys()

def test_remap_numbers():
    "One number a token is remapped as rows are"
    old,new = list('abc'),list('cxa')
    out,found = remap_rows(torch.tensor([1.,3.,8.]), old, new)
    assert out.tolist()==[8,4,1] and found==2
