"Tokenizers: the same tokens as fastai's, texts put together again, and learners that take them along"
import multiprocessing, os, subprocess, sys, pandas as pd, pytest, torch
from functools import partial
from fastai.text.core import defaults as fastai_defaults
from fastai.text.all import BaseTokenizer, SpacyTokenizer, TextDataLoaders, Tokenizer, TokenizeWithRules, fix_html, load_learner, lowercase, replace_rep
from hypothesis import example, given, settings, strategies as st
from fixtures import SMALL, quiet, texts_df
from fastai_txf.text.codec import text_tokenizer
from fastai_txf.text.corpus import docstrings_df
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.codec import decode_ids, encode_text
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.learn.mlm import transformer_mlm_learner
from fastai_txf.text.pairs import Seq2SeqDataLoaders
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.tokens import as_tokenizer, BPETokenizer, CharTokenizer, workers_for
from fastai_txf.text.words import FastSpacyTokenizer

# FastSpacyTokenizer

fai,fast,tiny = SpacyTokenizer(), FastSpacyTokenizer(), FastSpacyTokenizer(max_kept=3)

# What the rules and spaCy's special cases look at, so that they meet
pieces = st.sampled_from(['a','b','A','AB','Ab','aB','the','The','it','He','I','x','Σ','ΑΣ','İ','ß','é','日本','🙂','1','3','8','10','.','..','...',',','!','!!!','-','--','_','/','//','///','#','\\','\\n','\\"',
    ' ','  ','   ','\n','\n\n','\t','\r\n','\xa0','\u2003','\x1c','\u200b','<br />','<br /><br />','&amp;','&lt;','nbsp;','#39;','<unk>',' @-@ ','xxbos','xxrep','xxwrep','xxmaj','xxunk',"'","''",'’','"','(',')','((','))',':',';','=','*','@',
    "'s","n't","I'm","don't","it's",'a.m.','10a.m','i.e','Mr','Mrs.','co.',':)',':(',':-)',':))','(:','8)',':3','<3','o.O','(*_*)','http://a.b/c','www.x.com','a@b.co','U.S.','km','$','%','°','and','or','w','go go go ','No no no','ha ha'])
texts = st.one_of(st.lists(pieces, max_size=12).map(''.join), st.lists(pieces, max_size=10).map(' '.join), st.text(max_size=30))

def slow(texts, rules=None): return [list(o) for o in TokenizeWithRules(fai, rules=rules)(texts)]

@settings(max_examples=600)
@given(texts)
@example('fine:) )').via('a longer special case across a space wins')
@example('fine:) ok').via('and none does')
@example('aaab b b,').via('repeated words that repeated letters have left')
@example('\n///x').via('spaces that the rules put behind a newline')
@example(' b b b ').via('spaces that a rule looks for')
def test_same_as_fastai(text):
    "The tokens of fastai's default, rules applied by fastai, by the tokenizer, or none, and however little is kept"
    want = slow([text])
    assert list(fast.tokenize([text])) == want == list(tiny.tokenize([text]))
    assert [list(o) for o in TokenizeWithRules(fast)([text])] == want
    assert list(fast([text])) == list(tiny([text])) == [list(o) for o in fai([text])]

@settings(max_examples=100)
@given(st.lists(texts, max_size=5), st.sampled_from([[], [lowercase], [replace_rep, fix_html], [str.upper]]))
def test_other_rules(texts, rules):
    "Rules of one's own are applied as they are"
    assert list(fast.tokenize(texts, rules)) == slow(texts, rules)

def test_many_texts():
    "Docstrings, with their code and indentation, from an iterator"
    texts = docstrings_df(max_per_class=60, min_words=5).text.tolist()
    assert len(texts) > 200
    assert list(fast.tokenize(iter(texts))) == slow(texts)

# Round trips

trained = BPETokenizer(300).train(['a character is a token', 'Zażółć gęślą jaźń 🙂', 'xxbos at the start'])

@given(st.one_of(st.text(), texts))
def test_round_trip(text):
    "What loses nothing gives every text back, special tokens around it or in it"
    for tok in (CharTokenizer(), trained):
        toks, = tok.tokenize([text])
        assert tok.detokenize(['xxbos', *toks, 'xxeos', 'xxpad']) == text and not any(' ' in t for t in toks)

@given(st.lists(st.text(max_size=20), max_size=4))
def test_token_ids(texts):
    "Ids without the tokens are those of the tokens"
    assert [[trained.vocab[i] for i in ids] for ids in trained.token_ids(iter(texts))] == list(trained(texts))

blanks = st.sampled_from([' ','  ','\n','\t','\r\n','\x0b','\x0c','\x1c','\x1f','\x85','\xa0','\u1680','\u180e','\u2003','\u200b','\u2028','\u202f','\u205f','\u3000','\ufeff',"it's",'a','the',"'","'s",'12','.',',','é','日','🙂','\u0301','…','½','Ab'])

@settings(max_examples=300)
@given(st.lists(blanks | st.characters(exclude_categories=['Cs']), max_size=14).map(''.join))
def test_runs(text):
    "Cut run by run, the pieces are those of the whole text, whatever the blanks"
    want = [o for i in trained.tok.encode(text, add_special_tokens=False).ids for o in trained.whole[i]]
    assert list(trained([text, text])) == [want]*2

def test_half_a_pair():
    "What is no character is named, in training and in cutting"
    for f in (BPETokenizer(300).train, lambda texts: list(trained(texts)), lambda texts: list(trained.token_ids(texts))):
        with pytest.raises(ValueError, match=r"\\ud83d' ends with half of a surrogate pair"): f(['fine', 'so \ud83d it goes'])

def _interrupted():
    yield 'ccc ccc'
    raise KeyboardInterrupt

@pytest.mark.parametrize('texts', [lambda: ['ccc','x',3], lambda: ['ok','half \ud83d'], _interrupted], ids=['number','half','interrupted'])
def test_training_that_fails(texts):
    "Leaves a tokenizer as it was: not trained, or with all that it had learned"
    new,old = BPETokenizer(300), BPETokenizer(300).train(['aaa bbb']*9)
    before = [*old(['aaa bbb'])], old.vocab, old.table
    for tok in (new, old):
        with pytest.raises((Exception,KeyboardInterrupt)): tok.train(texts())
    assert not new.ready and new.vocab is None
    assert ([*old(['aaa bbb'])], old.vocab, old.table) == before

# In fastai's loaders

toks = dict(words=FastSpacyTokenizer, characters=CharTokenizer, pieces=lambda: BPETokenizer(300))
each_tok = pytest.mark.parametrize('tok', toks.values(), ids=toks)

def test_fastais_loaders():
    "The same vocabulary and ids as with fastai's tokenizer, through fastai's loaders and ours, whose set-up does not go text by text"
    df = texts_df(40)
    kw = dict(text_col='text', label_col='label', valid_col='is_valid', bs=4)
    fastais = TextDataLoaders.from_df(df, **kw)
    for dls in (TextDataLoaders.from_df(df, tok_tfm=FastSpacyTokenizer(), **kw), TransformerDataLoaders.from_df(df, tok_tfm=FastSpacyTokenizer(), min_freq=3, **kw)):
        assert dls.vocab[0] == fastais.vocab[0] and list(dls.vocab[1]) == list(fastais.vocab[1])
        for (x,y),(x2,y2) in zip(dls.valid_ds, fastais.valid_ds): assert x.equal(x2) and y == y2

@each_tok
def test_own_rules_and_vocabulary(tok):
    "A tokenizer that loses nothing sees texts as they are, and learns from the training texts alone"
    df = texts_df(40)
    df['text'] = df.text.str.title() + df.is_valid.map({True:' Żółć', False:' Q!'})
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', tok_tfm=tok(), bs=4, num_workers=0)
    t = text_tokenizer(dls)
    if not t.tok.lossless: return
    for i in range(3): assert t.tok.detokenize([dls.vocab[0][j] for j in dls.train_ds[i][0]]) == df.text[~df.is_valid].iloc[i]
    if t.tok.vocab: assert dls.vocab[0] == t.tok.vocab and not any('Å»Ã³' in o for o in t.tok.vocab)

run = """
import sys
from fastai.text.all import load_learner
print(repr(load_learner(sys.argv[1]).predict('A Lovely, warm film... (8/10)')[2].tolist()))
"""

def test_export(tmp_path):
    "In a fresh process a learner predicts what it predicted here, whatever its tokenizer"
    df = texts_df(40)
    for name,tok in toks.items():
        dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', tok_tfm=tok(), bs=4, num_workers=0)
        learn = quiet(transformer_classifier_learner(dls, path=tmp_path, **SMALL))
        want = learn.predict('A Lovely, warm film... (8/10)')[2].tolist()
        learn.export(f'{name}.pkl')
        res = subprocess.run([sys.executable, '-W', 'ignore', '-c', run, tmp_path/f'{name}.pkl'], capture_output=True, text=True, check=True)
        assert eval(res.stdout.splitlines()[-1]) == pytest.approx(want, abs=1e-6)

# Texts to ids and back

def all_loaders(tok):
    "Loaders of each kind over the same texts, and where their training ids are"
    df = texts_df(40)
    kw,lm = dict(valid_col='is_valid', tok_tfm=tok(), bs=4),dict(text_col='text', seq_len=16)
    yield TransformerDataLoaders.from_df(df, text_col='text', label_col='label', **kw), lambda dls: dls.train_ds.tls[0]
    yield TransformerDataLoaders.from_df(df, is_lm=True, **lm, **kw), lambda dls: dls.train_ds.tls[0]
    yield LMDataLoaders.from_df(df, **lm, **kw), lambda dls: dls.train_ds
    for side in (0,1): yield Seq2SeqDataLoaders.from_df(df, src_col='text', tgt_col='tags', **kw), lambda dls, side=side: dls.train_ds.tls[side]

@each_tok
def test_encode_and_decode(tok):
    "The ids that training has, and what they say without special tokens, for each kind of loaders and either side"
    df = texts_df(40)
    for (dls,ids),side in zip(all_loaders(tok), (0,0,0,0,1)):
        texts = df['tags' if side else 'text'][~df.is_valid].tolist()
        want = [o.tolist() for o in ids(dls)]
        assert [o.tolist() for o in encode_text(dls, texts, side)] == want and encode_text(dls, texts[0], side).tolist() == want[0]
        assert decode_ids(dls, want[:3], side) == [decode_ids(dls, torch.tensor(o), side) for o in want[:3]]
        if tok is not FastSpacyTokenizer: assert decode_ids(dls, want[:3], side) == texts[:3]
        assert decode_ids(dls, torch.tensor([want[0]*2, [1]*2*len(want[0])]), side)[1] == '' == decode_ids(dls, [], side)

def test_encode_words():
    "Rules there and back, data frames, learners"
    dls = TransformerDataLoaders.from_df(texts_df(40), text_col='text', label_col='label', valid_col='is_valid', bs=8)
    learn = transformer_classifier_learner(dls, **SMALL)
    text = 'The Film was THE film with the'
    assert decode_ids(learn, encode_text(learn, text)) == text and encode_text(learn, pd.DataFrame(dict(t=[text])), text_col='t')[0].equal(encode_text(dls, text))
    assert decode_ids(dls, encode_text(dls, text), decoder=lambda toks: toks).startswith('xxmaj the xxmaj film was xxup the film')

@pytest.mark.parametrize('num_workers', [0,1])
@pytest.mark.parametrize('make', [transformer_classifier_learner, transformer_lm_learner, partial(transformer_mlm_learner, mask_tok='a')], ids=['clf','lm','mlm'])
@pytest.mark.parametrize('tok', [CharTokenizer, lambda: BPETokenizer(300)], ids=['characters','pieces'])
def test_learners_take_empty_texts(tok, make, num_workers, tmp_path):
    "A text without one token is integers like any other: in training, in validation, alone in a batch, after export"
    df,is_lm = texts_df(40), make is transformer_lm_learner
    df.loc[[1,2,4,5,6,7,8,34], 'text'] = ''
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', tok_tfm=tok(), is_lm=is_lm, bs=2, seq_len=16, num_workers=num_workers, path=tmp_path)
    assert not any(t.is_floating_point() for ds in (dls.train_ds, dls.valid_ds) for t,*_ in ds)
    learn = quiet(make(dls, **SMALL))
    learn.fit(1)
    assert torch.isfinite(learn.get_preds()[0]).all()
    learn.export('l.pkl')
    if make is transformer_classifier_learner: assert load_learner(tmp_path/'l.pkl').predict('')[2].equal(learn.predict('')[2])

def test_one_text_is_not_many():
    with pytest.raises(TypeError, match='one str is not many texts'): BPETokenizer(300).train('a long text')

def test_encode_errors():
    dls = LMDataLoaders.from_texts(['abc'], tok_tfm=CharTokenizer(), bs=1)
    for i in (-1, len(dls.vocab)):
        with pytest.raises(ValueError, match=f'no token number {i}: the vocabulary has {len(dls.vocab)}'): decode_ids(dls, [2,i])
    with pytest.raises(TypeError, match='text number 1 is None'): encode_text(dls, ['a',None])

def test_refused_before_work():
    "A transform in a tokenizer's place, and ids before there is a vocabulary"
    with pytest.raises(TypeError, match='give what it cuts with'): as_tokenizer(Tokenizer(BaseTokenizer()))
    with pytest.raises(ValueError, match='train'): BPETokenizer(vocab_sz=300).token_ids(['a'])

@pytest.mark.parametrize('method,platform,most', [('fork','linux',5), ('spawn','linux',0), ('forkserver','linux',0), ('spawn','win32',0), ('spawn','darwin',5), (None,'linux',0)])
def test_default_of_processes(monkeypatch, method, platform, most):
    "One a CPU from 2,000 texts on, if they begin as copies of this one; a number that is given is taken"
    monkeypatch.setattr(multiprocessing, 'get_start_method', lambda allow_none=False: method)
    monkeypatch.setattr(multiprocessing, 'get_all_start_methods', lambda: ['forkserver','fork','spawn'])
    monkeypatch.setattr(sys, 'platform', platform)
    monkeypatch.setattr(fastai_defaults, 'cpus', 5)
    assert [workers_for(n) for n in (1999,2000)] == [0,most] and [workers_for(n, 3) for n in (1999,2000)] == [3,3]

_script = """
import multiprocessing, sys
from fastai.text.core import BaseTokenizer
from fastai_txf.text.tokens import token_lists, workers_for
def cut(n_workers): return list(token_lists(['a b']*2000, BaseTokenizer(), [], n_workers))
if __name__ == '__main__':
    workers_for(2000)
    print(multiprocessing.get_start_method(allow_none=True), end=' ')
multiprocessing.set_start_method('spawn', force=True)
print(len(cut(workers_for(2000))), flush=True)
cut(1)
"""

def test_processes_without_a_guard(tmp_path):
    "Where processes are spawned a script without a guard runs, and says what to do where it asks for some; the question sets no method"
    (tmp_path/'script.py').write_text(_script)
    env = {**os.environ, 'PYTHONPATH':os.pathsep.join(sys.path), 'OMP_NUM_THREADS':'1'}
    res = subprocess.run([sys.executable, tmp_path/'script.py'], env=env, capture_output=True, text=True, timeout=240)
    assert res.stdout.startswith('None 2000\n') and res.returncode == 1, res.stderr
    assert 'BrokenProcessPool): set n_workers=0, or put the calls of your script under' in res.stderr

def test_words_of_chinese():
    "spaCy's tokenizer of Chinese would take `xxbos` apart: refused with what to take"
    with pytest.raises(ValueError, match=r"lang='zh'.*CharTokenizer\(\) or BPETokenizer\(2000\)"): FastSpacyTokenizer('zh')
    assert FastSpacyTokenizer('de', special_toks=[]).exact
