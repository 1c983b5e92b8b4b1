"A language model as a file of llama.cpp: what the file holds, what is refused, and, where llama.cpp is installed, its tokens"
import pytest, torch, warnings
import numpy as np
from functools import partial
from fastai_txf.generate.decode import generate
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.share.gguf import to_gguf
from fastai_txf.text.codec import TextCodec
from fastai_txf.text.corpus import docstrings_df
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.tokens import BPETokenizer, CharTokenizer
from fixtures import df, quiet

gguf = pytest.importorskip('gguf')
small = dict(d_model=32, n_heads=4, n_layers=2, max_len=128)

@pytest.fixture(scope='session')
def texts(): return docstrings_df(max_per_class=60, min_words=5).text.tolist()

@pytest.fixture(scope='session')
def dls_bpe(texts): return LMDataLoaders.from_texts(texts[:200], tok_tfm=BPETokenizer(500), seq_len=32, bs=4)

def lm(dls, preset, **kw):
    "A learner whose weights are large enough that its texts do not repeat"
    learn = quiet(transformer_lm_learner(dls, preset, **{**small, **kw}))
    torch.manual_seed(0)
    for p in learn.model.parameters():
        if p.ndim==2: torch.nn.init.normal_(p, std=0.15)
    learn.model.cpu().eval()
    return learn

kinds = {'llama':partial(lm, preset='llama', n_kv_heads=2), 'tied':partial(lm, preset='llama', tie=True), 'biases':partial(lm, preset='llama', tie=True, bias=True, pos_base=5e4), 'gpt2':partial(lm, preset='gpt2', ff='gelu_tanh')}

@pytest.mark.parametrize('make', kinds.values(), ids=kinds)
def test_file(make, dls_bpe, tmp_path):
    "Every weight once, as it is, and the tokens in their order"
    learn = make(dls_bpe)
    reader = gguf.GGUFReader(to_gguf(learn, tmp_path/'m.gguf'))
    held = {t.name:t.data for t in reader.tensors}
    state = learn.model.state_dict()
    n = sum(v.numel() for k,v in state.items() if not (k=='head.weight' and learn.model.config.tie))
    assert sum(o.size for o in held.values())==n and ('output.weight' in held)==(not learn.model.config.tie)
    qkv = [held[k] for k in ('blk.1.attn_q.weight','blk.1.attn_k.weight','blk.1.attn_v.weight') if k in held] or [held['blk.1.attn_qkv.weight']]
    assert np.array_equal(np.concatenate(qkv), state['encoder.blocks.1.attn.fn.qkv.weight'].numpy())
    vocab,c = learn.dls.vocab,reader.fields
    tokens = [bytes(c['tokenizer.ggml.tokens'].parts[i]).decode() for i in c['tokenizer.ggml.tokens'].data]
    assert len(tokens)==learn.model.config.vocab_sz==len({*tokens}) and all(a==b for a,b in zip(tokens, vocab) if b != 'xxfake')
    assert [p.name for p in tmp_path.iterdir()]==['m.gguf']
    ends = {k:c[f'tokenizer.ggml.{k}_token_id'].parts[-1][0] for k in ('bos','eos')}
    assert ends=={'bos':vocab.index('xxbos'), 'eos':vocab.index('xxbos')} and c['tokenizer.ggml.add_bos_token'].parts[-1][0] # a text ends where the next begins

@pytest.mark.parametrize('kind', ['llama','gpt2'])
def test_no_window(kind, dls_bpe, tmp_path):
    "A file of rotary positions is written with one warning: llama.cpp has no window. The context length is `max_len`"
    learn = kinds[kind](dls_bpe)
    with warnings.catch_warnings(record=True) as got:
        warnings.simplefilter('always')
        file = to_gguf(learn, tmp_path/'m.gguf')
    assert [str(o.message)[:32] for o in got if 'window' in str(o.message)]==['a file of llama.cpp has no windo']*(kind=='llama')
    field = gguf.GGUFReader(file).fields[f'{kind}.context_length']
    assert field.parts[field.data[0]][0]==128

@pytest.mark.parametrize('make', kinds.values(), ids=kinds)
def test_llama_cpp(make, dls_bpe, texts, tmp_path):
    "llama.cpp cuts texts as we do and greedily writes the same 64 tokens"
    cpp = pytest.importorskip('llama_cpp', reason='llama-cpp-python is not installed')
    learn,codec = make(dls_bpe),TextCodec(dls_bpe)
    llm = cpp.Llama(str(to_gguf(learn, tmp_path/'m.gguf')), n_ctx=128, verbose=False, logits_all=True, n_threads=1, type_k=0, type_v=0)
    for t in (*texts[:50], ' two  spaces\n\t x', '🙂 naïve — ﷽', 'xxbos xxpad', 'a\r\n\r\n  b', '日本 123 1.000'):
        assert llm.tokenize(t[:200].encode(), special=False)==codec.encode([t[:200]])[0].tolist(), t
    x = codec.encode(['Return the'])[0]
    want = generate(learn.model, x[None], 64, temperature=0)[0]
    got = x.tolist()
    llm.eval(got)
    for _ in range(64):
        got.append(int(np.argmax(llm.scores[llm.n_tokens-1])))
        llm.eval(got[-1:])
    assert got==want.tolist() and len({*got}) > 4
    with torch.no_grad(): logits = learn.model(want[None])[0].numpy()
    gap = np.abs(llm.scores[:len(want)] - logits).max()
    assert gap < (0.05 if learn.model.config.ff=='gelu_tanh' else 1e-4), gap # its GELU is a table in half precision

def test_refused(dls_bpe, texts, df, tmp_path):
    "What has no place there is named, and the file that is there stays"
    file = tmp_path/'m.gguf'
    file.write_text('mine')
    chars = LMDataLoaders.from_texts(texts[:50], tok_tfm=CharTokenizer(), seq_len=32, bs=4)
    clf = TransformerDataLoaders.from_df(df, label_col='label', valid_col='is_valid', tok_tfm=BPETokenizer(300), bs=8, num_workers=0)
    for learn,match in ((lm(dls_bpe, 'gpt2'), "ff='gelu'"), (lm(dls_bpe, 'gpt2', ff='gelu_tanh', bias=False), 'bias=False'), (lm(dls_bpe, 'llama', scale_emb=True), 'scale_emb=True'),
                        (lm(dls_bpe, 'llama', positions='alibi'), "positions='alibi'"), (lm(chars, 'llama'), 'CharTokenizer is no BPETokenizer'),
                        (transformer_classifier_learner(clf, 'bert', d_model=16, n_heads=2), 'TransformerClassifier does not write')):
        with pytest.raises(ValueError, match=match): to_gguf(learn, file)
    with pytest.raises(TypeError, match='no learner'): to_gguf(lm(dls_bpe, 'llama').model, file)
    learn = lm(dls_bpe, 'llama')
    learn.model.head.weight.data[3,2] = float('inf')
    with pytest.raises(ValueError, match='holds NaN or infinity.*train it again'): to_gguf(learn, file)
    for part in ('emb','blocks.1.attn.fn'):
        learn = lm(dls_bpe, 'llama')
        learn.model.encoder.get_submodule(part).register_forward_hook(lambda m,args,out: out*1.5)
        with pytest.raises(ValueError, match='says something else.*a hook'): to_gguf(learn, file)
    assert file.read_text()=='mine' and len(list(tmp_path.iterdir()))==1

def test_missing_package(dls_bpe, monkeypatch, tmp_path):
    "Without the package it says what to install"
    monkeypatch.setitem(__import__('sys').modules, 'gguf', None)
    with pytest.raises(ImportError, match='pip install gguf'): to_gguf(lm(dls_bpe, 'llama'), tmp_path/'m.gguf')
