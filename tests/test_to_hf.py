"Models on their way to `transformers`: the same tokens greedily, the same numbers for texts, back again bit by bit, what is refused, and nothing half-written"
import sys; sys.modules.setdefault('torchvision', None)
import os, random, stat
from functools import partial
import pytest, torch, torch.nn as nn
from fastai.text.all import BaseTokenizer, CrossEntropyLossFlat
from hypothesis import given, settings, strategies as st
from fastai_txf.generate import faststep
from fastai_txf.generate.decode import generate
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.learn.mlm import transformer_mlm_learner
from fastai_txf.model.layers import FeedForward, TransformerBlock
from fastai_txf.model.models import Seq2SeqTransformer, TransformerClassifier, TransformerLM, TransformerMLM
from fastai_txf.model.stack import TransformerEncoder
from fastai_txf.share.hf import from_hf, HFTokenizer
from fastai_txf.share.hf_tokens import to_hf_tokenizer
from fastai_txf.share import to_hf as room
from fastai_txf.share.to_hf import to_hf
from fastai_txf.text.codec import TextCodec
from fastai_txf.text.corpus import docstrings_df
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.plain import cut_gaps, gap_ids
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.tokens import BPETokenizer, CharTokenizer
from fixtures import df, quiet, uncompiled

tr = pytest.importorskip('transformers')

def rough(model, std=0.2):
    "`model` in `eval` with random weights, none small, so that all that is passed on can be seen"
    torch.manual_seed(0)
    for k,p in model.named_parameters():
        if p.ndim==2 or not k.endswith('bias') or 'head' not in k: nn.init.normal_(p, mean=float(p.ndim==1 and k.endswith('weight')), std=std)
    return model.eval()

small = dict(vocab_sz=60, d_model=16, n_heads=4, n_layers=2, max_len=32)
def lm(preset, **kw): return rough(TransformerLM(preset, **{**small, **kw}))

def same_state(a, b):
    a,b = a.state_dict(),b.state_dict()
    return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

# Greedy tokens

slow = pytest.mark.slow
shapes = {f'{preset}-{d}-{"tied" if tie else "untied"}{"-grouped" if kv else ""}':(preset, d, n, tie, kv)
          for d,n in ((32,2), (64,3), (96,4)) for preset,tie,kv in (('gpt2',True,None), ('gpt2',False,None), ('llama',True,2), ('llama',False,None), ('llama',False,1))}

@pytest.mark.parametrize('preset,d,n,tie,kv', [pytest.param(*v, id=k, marks=[slow]*(v[1] > 32)) for k,v in shapes.items()])
def test_greedy(preset, d, n, tie, kv):
    "256 tokens, greedily the same there and here"
    model = rough(TransformerLM(preset, vocab_sz=300, d_model=d, n_heads=4, n_layers=n, tie=tie, n_kv_heads=kv, max_len=320), std=d**-0.5)
    theirs,x = to_hf(model),torch.randint(2, 300, (2,8))
    assert type(theirs).__name__==('GPT2LMHeadModel' if preset=='gpt2' else 'MistralForCausalLM') and theirs.config.tie_word_embeddings==tie
    want = generate(model, x, 256, temperature=0)
    got = theirs.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=256, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(got, want) and len(want[:,8:].unique()) > 5
    assert same_state(from_hf(theirs), model) if tie or preset=='llama' else torch.equal(from_hf(theirs)(x), model(x))

# Logits, and back

forms = {'gpt2':partial(lm, 'gpt2'), 'gpt2, tanh':partial(lm, 'gpt2', ff='gelu_tanh'), 'gpt2, relu':partial(lm, 'gpt2', ff='relu', d_ff=20, eps=1e-2), 'gpt2, no biases':partial(lm, 'gpt2', bias=False),
         'gpt2, scaled':partial(lm, 'gpt2', scale_emb=True), 'llama':partial(lm, 'llama'), 'llama, biases':partial(lm, 'llama', bias=True, tie=True), 'llama, odd heads':partial(lm, 'llama', d_head=6, n_kv_heads=2),
         'llama, base':partial(lm, 'llama', pos_base=500.), 'llama, own biases':partial(lm, 'llama', bias=None, tie=True), 'llama, scaled':partial(lm, 'llama', scale_emb=True, eps=1e-3),
         'encoder, gpt2':lambda: rough(TransformerEncoder('gpt2', causal=True, **small)), 'encoder, llama':lambda: rough(TransformerEncoder('llama', causal=True, **small)),
         'encoder, bert':lambda: rough(TransformerEncoder('bert', **small)), 'bert':lambda: rough(TransformerClassifier('bert', n_out=3, **small)),
         'bert, no biases':lambda: rough(TransformerClassifier('bert', bias=False, ff='relu', **small)), 'masked':lambda: rough(TransformerMLM('bert', mlm_head=True, scale_emb=False, **small)),
         'masked, scaled':lambda: rough(TransformerMLM('bert', mlm_head=True, **small)), 'masked, untied':lambda: rough(TransformerMLM('bert', mlm_head=True, scale_emb=False, tie=False, **small))}

@pytest.mark.parametrize('make', forms.values(), ids=forms)
def test_there_and_back(make):
    "Their logits are ours beside padding, and `from_hf` gives the model back"
    model = make()
    rng = torch.get_rng_state()
    theirs = to_hf(model)
    assert torch.equal(rng, torch.get_rng_state())
    real = torch.arange(20) < torch.tensor([20,3,11])[:,None]
    x = torch.randint(2, 60, (3,20)).masked_fill(~real, 1)
    again = from_hf(theirs)
    with torch.no_grad(): a,b,out = model(x),again(x),theirs(x, attention_mask=real.long())
    out = out.logits if hasattr(out, 'logits') else out.last_hidden_state
    pick = (lambda t: t) if a.ndim==2 else lambda t: t[real]
    torch.testing.assert_close(pick(out), pick(a), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pick(b), pick(a), atol=1e-6, rtol=0)
    assert type(again) is type(model)

@pytest.mark.parametrize('name', ['gpt2','llama','llama, odd heads','encoder, gpt2','encoder, llama','encoder, bert','bert','masked','masked, untied'])
def test_bits(name):
    "What needs no folding comes back bit by bit, and the configuration with it but for dropout"
    model = forms[name]()
    again = from_hf(to_hf(model))
    assert same_state(again, model)
    for f in ('d_model','n_heads','n_layers','ff','norm','eps','emb_norm','wiring','positions','max_len','tie','pad_idx','vocab_sz','mlm_head'):
        assert getattr(again.config, f)==getattr(model.config, f), f

def answers(theirs, x):
    with torch.no_grad(): out = theirs(x)
    return out.logits if hasattr(out, 'logits') else out.last_hidden_state

@pytest.mark.parametrize('cls,kind', [(TransformerLM,'MistralForCausalLM'), (TransformerEncoder,'MistralModel')])
def test_window(cls, kind, tmp_path):
    "Beyond `max_len` tokens, too, a token sees the last `max_len`: the same logits, from the folder and back again"
    model = rough(cls('llama', causal=True, **{**small, 'max_len':6}))
    to_hf(model, tmp_path/'m')
    theirs,x = getattr(tr, kind).from_pretrained(tmp_path/'m'), torch.randint(2, 60, (2,40))
    assert (theirs.config.sliding_window, theirs.config.max_position_embeddings)==(6,6) and 'a token sees the last 6.' in (tmp_path/'m'/'README.md').read_text()
    with torch.no_grad(): want,again = model(x),from_hf(theirs)(x)
    torch.testing.assert_close(answers(theirs, x), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again, want, atol=1e-6, rtol=0)
    assert cls is TransformerEncoder or torch.equal(theirs.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=60, do_sample=False, eos_token_id=None, pad_token_id=0), generate(model, x, 60, temperature=0))

@pytest.mark.parametrize('window', [5,None,400])
def test_window_from_elsewhere(window):
    "A Mistral that came in goes out as it was, its window with it"
    theirs = rough(tr.MistralForCausalLM(tr.MistralConfig(vocab_size=60, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=24, max_position_embeddings=24, sliding_window=window)))
    x = torch.randint(2, 60, (2,24))
    torch.testing.assert_close(answers(to_hf(from_hf(theirs)), x), answers(theirs, x), atol=1e-5, rtol=1e-5)

def test_biases_have_no_window():
    "With biases the model is a Llama, which sees everything: the same up to `max_len` tokens, and a warning says so"
    model,x = lm('llama', bias=True, tie=True, max_len=6), torch.randint(2, 60, (2,20))
    with pytest.warns(UserWarning, match='LlamaForCausalLM has no window.*max_len=6.*bias=False.*MistralForCausalLM'): theirs = to_hf(model)
    with torch.no_grad(): want = model(x)
    torch.testing.assert_close(answers(theirs, x)[:,:6], want[:,:6], atol=1e-5, rtol=1e-5)
    assert type(theirs).__name__=='LlamaForCausalLM' and (answers(theirs, x)[:,6:]-want[:,6:]).abs().max() > 1e-3

def test_scaled():
    "Scaled embeddings are stored scaled, and a tied head becomes one of its own"
    model = lm('gpt2', scale_emb=True)
    theirs = to_hf(model)
    assert torch.equal(theirs.transformer.wte.weight, model.encoder.emb.weight*4) and torch.equal(theirs.lm_head.weight, model.head.weight) and not theirs.config.tie_word_embeddings

@pytest.mark.parametrize('dtype', [torch.float64,torch.bfloat16])
def test_precision(dtype):
    "The precision is kept; the model is a copy"
    model = lm('llama').to(dtype)
    before,theirs = {k:v.clone() for k,v in model.state_dict().items()},to_hf(model)
    assert {p.dtype for p in theirs.parameters()}=={dtype} and not theirs.training
    for p in theirs.parameters(): p.data.zero_()
    assert all(torch.equal(model.state_dict()[k], v) for k,v in before.items())

# Tokenizers

pieces = st.sampled_from(['a','the','The',' ','  ','\n','\r\n','\t','\xa0','\u2003','\u200b','é','e\u0301','ß','İ','日本','🙂','👩‍👩‍👧','1','10','.','...','_','▁','\0','\x85','xxbos','xxunk','xxpad','xxmaj',"'s",'def f(x):','    return','Ġ','<|endoftext|>','#','﷽'])
odd_texts = st.one_of(st.text(max_size=30), st.lists(pieces, max_size=12).map(''.join), st.lists(pieces, max_size=10).map(' '.join))

@pytest.fixture(scope='session')
def corpus(): return docstrings_df(max_per_class=300, min_words=5).text.tolist()

def some_texts(corpus, n=10_000):
    "Docstrings, pieces of them, runs of whitespace, random characters of all planes"
    rng,res = random.Random(0),list(corpus)
    planes = [(32,127), (0,0x250), (0x370,0x600), (0x2000,0x2070), (0x3000,0x3100), (0x4e00,0x4f00), (0xac00,0xad00), (0x1f300,0x1f700), (0x10000,0x10100)]
    while len(res) < n:
        t,i = rng.choice(corpus),rng.randrange(200)
        kind = rng.randrange(3)
        if kind==0: res.append(t[i:i+rng.randrange(80)])
        elif kind==1: res.append(''.join(rng.choice([*' \t\n\r\x0b\x0c\x1c\x85\xa0\u2000\u3000','ab']) for _ in range(rng.randrange(12))))
        else: res.append(''.join(chr(rng.randrange(*rng.choice(planes))) for _ in range(rng.randrange(20))))
    return res[:n]

def lm_dls(tok, texts, **kw): return LMDataLoaders.from_texts(texts[:300], tok_tfm=tok, seq_len=32, bs=4, **kw)

@pytest.fixture(scope='session')
def codecs(corpus):
    "Loaders of each kind and the tokenizer that they become"
    words = dict(rules=[], min_freq=2)
    made = dict(bpe=lm_dls(BPETokenizer(600), corpus), bare=lm_dls(BPETokenizer(400), corpus, starts=False), chars=lm_dls(CharTokenizer(), corpus), words=lm_dls(BaseTokenizer(), corpus, **words))
    return {k:(TextCodec(v), to_hf_tokenizer(v, 512)) for k,v in made.items()}

@pytest.mark.parametrize('kind', ['bpe', *[pytest.param(k, marks=slow) for k in ('bare','chars','words')]])
def test_10_000_texts(kind, codecs, corpus, tmp_path):
    "The same numbers for each of them, from the folder"
    ours,theirs = codecs[kind]
    theirs.save_pretrained(tmp_path)
    theirs,texts = tr.AutoTokenizer.from_pretrained(tmp_path),[t for t in some_texts(corpus) if t or kind!='words']
    for t,a,b in zip(texts, ours.encode(texts), theirs(texts)['input_ids']): assert a.tolist()==b, t
    assert theirs.model_max_length==512 and theirs.padding_side=='right'

@settings(max_examples=60)
@given(text=odd_texts)
def test_any_text(codecs, text):
    "And for whatever there is, special tokens spelt out too; byte pairs and characters come back as they were"
    for kind,(ours,theirs) in codecs.items():
        if kind=='words' and not text: continue
        ids = ours.encode([text])[0].tolist()
        assert theirs(text)['input_ids']==ids, kind
        if kind in ('bpe','bare'): assert theirs.decode(ids, skip_special_tokens=True)==text
        if kind=='chars' and ours.vocab.index('xxunk') not in ids: assert theirs.decode(ids, skip_special_tokens=True)==text

def test_roles(codecs):
    "Begin, end, padding and unknown have their tokens; a text begins as the loaders begin it"
    for kind,(ours,theirs) in codecs.items():
        assert [theirs.convert_tokens_to_ids(t) for t in (theirs.bos_token, theirs.pad_token, theirs.unk_token)]==[ours.vocab.index(t) for t in ('xxbos','xxpad','xxunk')]
        assert (theirs('a')['input_ids'][0]==ours.vocab.index('xxbos'))==(kind!='bare')
    batch = codecs['bpe'][1](['a','a longer text'], padding=True)
    assert batch['input_ids'][0][-1]==codecs['bpe'][0].pad_idx and batch['attention_mask'][0][-1]==0

def test_own_tokenizer(codecs, df):
    "An `HFTokenizer` goes back as it came, with and without a token that begins a text"
    _,hf = codecs['bare']
    for bos in (False,True):
        tok = HFTokenizer(hf, bos=bos)
        dls = TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', tok_tfm=tok, text_vocab=tok.vocab, bs=8, num_workers=0)
        back,codec = to_hf_tokenizer(dls),TextCodec(dls)
        for t in (*df.text[:20], ' a  b\n', '🙂 xxbos'): assert back(t)['input_ids']==codec.encode([t])[0].tolist()
    frame = TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', tok_tfm=tok, text_vocab=[*tok.vocab,'xxmask'], bs=8, num_workers=0)
    with pytest.raises(ValueError, match="'xxmask', which stands for a gap, is no token of the tokenizer: tokenizer=False"): to_hf_tokenizer(transformer_mlm_learner(frame, mlm_head=True, **bert))
    assert to_hf_tokenizer(frame).mask_token is None

def test_refused_tokenizers(df, corpus):
    "What only code can describe is named"
    frame = partial(TransformerDataLoaders.from_df, df, label_col='label', valid_col='is_valid', bs=8, num_workers=0)
    for dls,match in ((frame(), 'cuts by rules that only code can describe'), (frame(tok_tfm=BaseTokenizer()), 'the rules fix_html'), (frame(tok_tfm=lambda ts: (t.split() for t in ts), rules=[]), 'a function cuts'),
                      (frame(tok_tfm=BaseTokenizer(split_char='/'), rules=[]), "split_char='/'"), (frame(tok_tfm=BPETokenizer(300), text_vocab=['xxunk','xxpad','a']), '2[0-9]+ of 2[0-9]+ pieces'),
                      (frame(tok_tfm=BPETokenizer(300), backwards=True), 'backwards=True'), (frame(tok_tfm=BPETokenizer(300).train(['xxbos']*9)), "a piece that is called 'xxbos'")):
        with pytest.raises(ValueError, match=match): to_hf_tokenizer(dls)

# Learners

def test_lm_folder(corpus, tmp_path, monkeypatch):
    "A trained language model's folder writes what `predict` writes; its weights are one file of plain tensors"
    monkeypatch.setattr(faststep, '_build', uncompiled)
    learn = quiet(transformer_lm_learner(lm_dls(BPETokenizer(500), corpus), 'llama', d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, max_len=128))
    learn.fit(1, 3e-3)
    to_hf(learn, tmp_path/'sub'/'model')
    files = {o.name for o in (tmp_path/'sub'/'model').iterdir()}
    assert files >= {'config.json','model.safetensors','tokenizer.json','tokenizer_config.json','README.md','generation_config.json'} and [o.name for o in (tmp_path/'sub').iterdir()]==['model']
    theirs,tok = tr.AutoModelForCausalLM.from_pretrained(tmp_path/'sub'/'model'),tr.AutoTokenizer.from_pretrained(tmp_path/'sub'/'model')
    for prompt in ('Return the', 'x', 'A list of  names:\n'):
        out = theirs.generate(**tok(prompt, return_tensors='pt'), max_new_tokens=40, do_sample=False)[0]
        assert tok.decode(out, skip_special_tokens=True)==learn.predict(prompt, n_tokens=40, temperature=0)
    text = (tmp_path/'sub'/'model'/'README.md').read_text()
    assert 'AutoModelForCausalLM' in text and f'{sum(p.numel() for p in theirs.parameters()):,} parameters' in text

bert = dict(config='bert', d_model=16, n_heads=2, n_layers=2, max_len=64)
def bpe_dls(df, **kw): return TransformerDataLoaders.from_df(df, **{**dict(label_col='label', valid_col='is_valid', tok_tfm=BPETokenizer(300), bs=8, num_workers=0), **kw})

def test_classifier_folder(df, tmp_path):
    "A classifier's folder gives the probabilities of `predict`, by its labels' names"
    learn = quiet(transformer_classifier_learner(bpe_dls(df), **bert))
    learn.fit(1, 1e-3)
    to_hf(learn, tmp_path/'clf')
    theirs,tok = tr.AutoModelForSequenceClassification.from_pretrained(tmp_path/'clf'),tr.AutoTokenizer.from_pretrained(tmp_path/'clf')
    texts = [t[:60] for t in df.text[:9]]
    with torch.no_grad(): probs = theirs(**{k:v for k,v in tok(texts, padding=True, return_tensors='pt').items() if k!='token_type_ids'}).logits.softmax(-1)
    torch.testing.assert_close(probs, learn.predict(texts)[2], atol=1e-5, rtol=1e-5)
    assert [theirs.config.id2label[i] for i in range(2)]==['neg','pos'] and theirs.config.problem_type=='single_label_classification'
    pipe = tr.pipeline('text-classification', str(tmp_path/'clf'))
    assert [o['label'] for o in pipe(texts)]==[str(o) for o in learn.predict(texts)[0]]

def test_other_targets(df, tmp_path):
    "Several labels and numbers say so"
    several = bpe_dls(df, label_col='tags', label_delim=';')
    assert to_hf(transformer_classifier_learner(several, **bert)).config.problem_type=='multi_label_classification'
    assert to_hf(transformer_classifier_learner(bpe_dls(df, label_col='score'), **bert)).config.problem_type=='regression'
    class Cautious(CrossEntropyLossFlat):
        def decodes(self, x): return (x[:,1] > 0.99).long()
    with pytest.raises(ValueError, match='decodes'): to_hf(transformer_classifier_learner(bpe_dls(df), loss_func=Cautious(), **bert))

@pytest.mark.parametrize('kw', [{}, dict(text_col=['title','text'], tok_tfm=CharTokenizer()), dict(label_col='tags', label_delim=';'), dict(label_col='score')],
                         ids=['one','columns','several','numbers'])
def test_readme_of_classifiers(df, tmp_path, kw):
    "What it says gives what `predict` gives: one label, several from the loss's threshold on, numbers, several columns; texts beyond the end, too"
    learn = transformer_classifier_learner(bpe_dls(df.assign(title='a film'), **kw), **bert)
    rough(learn.model)
    learn.loss_func.thresh = 0.1
    to_hf(learn, tmp_path/'m')
    *code,last = (tmp_path/'m'/'README.md').read_text().split('```')[1].removeprefix('python\n').strip().split('\n')
    said = {}
    for text in ('warm film', 'dull '*90):
        exec('\n'.join(code).replace("'folder'", repr(str(tmp_path/'m'))).replace('…', text), said)
        want = learn.predict(dict(title=text, text=text))[0] if 'text_col' in kw else learn.predict(text)[0]
        got = eval(last, said)
        if text == 'warm film': assert got == pytest.approx(want) if kw.get('label_col') == 'score' else got == (list(want) if 'label_delim' in kw else want)
    assert ("['title', 'text']" in (tmp_path/'m'/'README.md').read_text()) == ('text_col' in kw)

def test_prices(df):
    "Numbers of any size: mean and spread go into the head"
    dls = bpe_dls(df.assign(score=df.score*1e6 + 3e6 + 0.5), label_col='score')
    learn = quiet(transformer_classifier_learner(dls, **bert))
    learn.fit(1, 1e-3)
    theirs,texts = to_hf(learn), [t[:60] for t in df.text[:9]]
    ids = learn.codec.encode(texts)
    want = learn.outputs(ids)
    with torch.no_grad(): got = torch.cat([theirs(i[None]).logits for i in ids])
    assert want.mean() > 1e6
    torch.testing.assert_close(got, want, atol=1e-4*learn.model.range.spread.item(), rtol=1e-5)

def test_masked_folder(df, tmp_path):
    "A masked model's folder guesses what `fill` guesses"
    tok = BPETokenizer(300).train(df.text.tolist())
    dls = bpe_dls(df, tok_tfm=tok, text_vocab=[*tok.vocab,'xxmask'])
    learn = quiet(transformer_mlm_learner(dls, mlm_head=True, **bert))
    learn.fit(1, 1e-3)
    to_hf(learn, tmp_path/'mlm')
    theirs,tok = tr.AutoModelForMaskedLM.from_pretrained(tmp_path/'mlm'),tr.AutoTokenizer.from_pretrained(tmp_path/'mlm')
    assert tok.mask_token=='xxmask'
    batch = tok([t[:50] for t in df.text[:5]], padding=True, return_tensors='pt')
    x,real = batch['input_ids'],batch['attention_mask'].bool()
    with torch.no_grad(): torch.testing.assert_close(theirs(x, attention_mask=real.long()).logits[real], learn.model.cpu().eval()(x)[real], atol=1e-5, rtol=1e-4)

@pytest.mark.parametrize('tok', [CharTokenizer, partial(BPETokenizer, 300), BaseTokenizer], ids=['chars','bpe','words'])
@pytest.mark.parametrize('more,mask', [(['xxmask'],None), (['xxmask','xxgap'],'xxgap'), (['xxfake'],None)], ids=['usual','own','filler'])
def test_gaps(df, tmp_path, tok, more, mask):
    "The token of a gap is the learner's, and the lines of the card hide what `fill` hides; left as it is, a text that spells it out is text"
    tok = tok()
    dls = bpe_dls(df, tok_tfm=tok, rules=[])
    words = [t for t in dls.vocab[0] if t != 'xxfake'] if tok.__class__ is not BPETokenizer else tok.vocab
    learn = transformer_mlm_learner(bpe_dls(df, tok_tfm=tok, rules=[], text_vocab=[*words, *more]), mlm_head=True, mask_tok=mask, **bert)
    to_hf(learn, tmp_path/'m')
    code,said = (tmp_path/'m'/'README.md').read_text().split('```')[1].removeprefix('python\n').replace("'folder'", repr(str(tmp_path/'m'))),{}
    for before,behind in (('a warm','film'), ('film','')):
        exec(code.replace('…', before, 1).replace('…', behind), said)
        ids,gaps = gap_ids(learn.codec, cut_gaps(learn.codec, f'{before} ___ {behind}')[1])
        ids[gaps] = learn.mask_tokens.mask_idx
        assert said['ids']['input_ids'].tolist() == [ids.tolist()]
    own = said['tokenizer'].mask_token.strip()
    assert own == ('<a gap>' if more == ['xxfake'] else mask or 'xxmask') and said['tokenizer'](own)['input_ids'] == learn.codec.encode([own])[0].tolist()

# What is refused

def own_block(**kw): return partial(TransformerBlock, **kw)
refused = {
    'positions':(lambda: lm('gpt2', positions='alibi'), "positions='alibi', not 'learned'"), 'norm':(lambda: lm('gpt2', norm='rms'), "norm='rms', not 'layer'"), 'wiring':(lambda: lm('gpt2', wiring='post'), "wiring='post', not 'pre'"),
    'ff':(lambda: lm('llama', ff='gelu'), "LlamaForCausalLM comes nearest, but for ff='gelu', not 'swiglu'"), 'mode':(lambda: lm('gpt2', mode='wide'), "mode='wide'"), 'narrow':(lambda: lm('gpt2', mode='narrow'), "mode='narrow'"),
    'conv':(lambda: TransformerLM('reviews', **{**small, 'n_layers':1}), "positions='conv'"), 'default':(lambda: TransformerLM(**small), "comes nearest, but for.*config='(gpt2|llama)' can go there"), 'groups':(lambda: lm('gpt2', n_kv_heads=2), 'n_kv_heads=2'),
    'd_head':(lambda: lm('gpt2', d_head=8), 'd_head=8'), 'emb_norm':(lambda: lm('llama', emb_norm=True), 'emb_norm=True, not False'), 'pool':(lambda: TransformerClassifier('bert', pool='mean', **small), "pool='mean', not 'first'"),
    'pooler':(lambda: TransformerClassifier('bert', pooler=False, **small), 'pooler=False, not True'), 'relu pooler':(lambda: TransformerClassifier('bert', pooler='relu', **small), "pooler='relu', not True"),
    'wide':(lambda: TransformerClassifier('bert', wide=64, **small), 'wide=64'),
    'norms of queries and keys':(lambda: lm('llama', qk_norm=True), 'qk_norm=True, not False'), 'bigrams':(lambda: lm('gpt2', bigrams=90), 'bigrams=90, not False'),
    'causal':(lambda: TransformerClassifier('bert', causal=True, **small), 'causal=True, not False'), 'no head':(lambda: TransformerMLM('bert', **small), 'mlm_head=False, not True'),
    'y_range':(lambda: TransformerClassifier('bert', y_range=(0,1), n_out=1, **small), 'y_range'), 'arch':(lambda: Seq2SeqTransformer(**small), 'arch=Seq2SeqTransformer'), 'linear':(lambda: nn.Linear(2,2), 'arch=Linear'),
    'block':(lambda: TransformerLM('gpt2', block=own_block(ff=partial(FeedForward, act=nn.Tanh)), **small), 'blocks.0.ff.fn.act is a Tanh.*block='),
    'blocks that look back':(lambda: TransformerLM('llama', block=own_block(n_kv_heads=2), **small), 'blocks.0.attn.fn'), 'bias of the head':(lambda: rough_head(lm('gpt2', tie=False)), 'lm_head.bias is not zero.*tie=True'),
    'diverged':(lambda: diverged(lm('llama')), 'blocks.1.ff.fn.up.weight holds NaN.*train it again')}

def rough_head(model):
    nn.init.normal_(model.head.bias)
    return model

def diverged(model):
    model.encoder.blocks[1].ff.fn.up.weight.data[3,2] = float('nan')
    return model

class Mine(TransformerLM): "An architecture of one's own"

@pytest.mark.parametrize('make,match', refused.values(), ids=refused)
def test_refused(make, match, tmp_path):
    "The field that does not fit, with its value; nothing is written"
    model = make()
    with pytest.raises(ValueError, match=match): to_hf(model, tmp_path/'out')
    assert not list(tmp_path.iterdir())

def hooked(part, f):
    part.register_forward_hook(lambda m,args,out: f(out))

def own_forward(part, f):
    old = part.forward
    part.forward = lambda *args,**kwargs: f(old(*args, **kwargs))

@pytest.mark.parametrize('change', [hooked,own_forward])
@pytest.mark.parametrize('name', ['gpt2, tanh','llama','encoder, bert','bert','masked'])
@pytest.mark.parametrize('part', ['emb','blocks.0.ff.fn'])
def test_refused_changes(name, part, change, tmp_path):
    "A hook or a forward of one's own that changes what the model says; nothing is written"
    model = forms[name]()
    change(getattr(model, 'encoder', model).get_submodule(part), lambda out: out*1.5)
    with pytest.raises(ValueError, match='says something else.*a hook'): to_hf(model, tmp_path/'out')
    assert not list(tmp_path.iterdir())

def test_hooks_that_listen(tmp_path):
    "A hook that changes nothing stays on the model and says nothing against it"
    model = lm('gpt2').train()
    hooked(model.encoder.emb, lambda out: None)
    before = {k:v.clone() for k,v in model.state_dict().items()}
    theirs = to_hf(model)
    assert model.training and not theirs.training and theirs.dtype==torch.float32
    assert all(torch.equal(v, before[k]) for k,v in model.state_dict().items())

@pytest.mark.parametrize('dtype', [torch.float64,torch.float16,torch.bfloat16])
@pytest.mark.parametrize('name', ['gpt2','gpt2, scaled','llama','bert'])
def test_any_precision(name, dtype):
    "Weights in other precisions than fp32 arrive bit by bit"
    model = forms[name]().to(dtype)
    for p in model.parameters(): p.data.add_(torch.randn_like(p)*1e-3)
    theirs = to_hf(model)
    if name == 'gpt2, scaled': assert torch.equal(theirs.transformer.wte.weight, model.encoder.emb.weight*4)
    else: assert same_state(from_hf(theirs), model)

def test_refused_learners(df, tmp_path):
    "So are an `arch=` of one's own and a tokenizer that is code, unless it is left out"
    dls = bpe_dls(df, is_lm=True, label_col=None, seq_len=16)
    with pytest.raises(ValueError, match='arch=Mine'): to_hf(transformer_lm_learner(dls, 'gpt2', arch=Mine, d_model=16, n_heads=2), tmp_path/'out')
    words = quiet(transformer_classifier_learner(bpe_dls(df, tok_tfm=None), **bert))
    with pytest.raises(ValueError, match='tokenizer=False'): to_hf(words, tmp_path/'out')
    assert not list(tmp_path.iterdir())
    to_hf(words, tmp_path/'out', tokenizer=False)
    assert 'no tokenizer here' in (tmp_path/'out'/'README.md').read_text() and not (tmp_path/'out'/'tokenizer.json').exists()

def test_existing(tmp_path):
    "What is there stays, folder, file or dangling link"
    (tmp_path/'folder').mkdir()
    (tmp_path/'file').write_text('mine')
    (tmp_path/'link').symlink_to('nowhere')
    for o in ('folder','file','link'):
        with pytest.raises(FileExistsError, match=f'{o} is there already'): to_hf(lm('gpt2'), tmp_path/o)
    assert (tmp_path/'file').read_text()=='mine' and len(list(tmp_path.iterdir()))==3

def test_nothing_half_written(tmp_path, monkeypatch):
    "A write that fails midway leaves nothing; one that does not gives an ordinary folder"
    def full(*args): raise OSError(28, 'No space left on device')
    with monkeypatch.context() as m:
        m.setattr(room, '_readme', full)
        with pytest.raises(OSError, match='No space'): to_hf(lm('gpt2'), tmp_path/'out')
    assert not list(tmp_path.iterdir())
    to_hf(lm('gpt2'), tmp_path/'out')
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path/'out').stat().st_mode)==0o777 & ~mask and [o.name for o in tmp_path.iterdir()]==['out']

def test_missing_package(monkeypatch, tmp_path):
    "Without `transformers` it says what to install"
    monkeypatch.setitem(sys.modules, 'transformers', None)
    with pytest.raises(ImportError, match='pip install transformers'): to_hf(lm('gpt2'), tmp_path/'out')
