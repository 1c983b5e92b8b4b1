"Batches from one array of ids: fastai's token for token, random windows, files, learners"
import inspect, random, tracemalloc, warnings, numpy as np, pandas as pd, pytest, torch
from pathlib import Path
from fastai.text.all import BaseTokenizer, LMDataLoader, LMTensorText, Numericalize, TensorText, TfmdLists, load_learner, make_vocab, Counter
from hypothesis import assume, given, strategies as st
from fixtures import SMALL, quiet, texts_df
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.base.ids import flat_ids, FlatIds, read_ids
from fastai_txf.text.codec import TextCodec
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.flat import FlatLMDataLoader, FlatTexts
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.tokens import BatchTokenizer, BPETokenizer, CharTokenizer
from fastai_txf.all import load_published
from fastai_txf.recipes.pretrain import ids_of, read_loaders

lists = st.lists(st.lists(st.integers(0, 99), max_size=12), min_size=1, max_size=12)
VOCAB = ['xxunk','xxpad','xxbos',*map(str, range(97))]

def texts_of(lists): return FlatTexts(flat_ids(lists), [Numericalize(VOCAB)])
def epoch(dl): return [tuple(t.as_subclass(torch.Tensor).tolist() for t in b) for b in dl]

@given(lists, st.integers(1, 7), st.integers(1, 9), st.booleans(), st.booleans())
def test_same_batches_as_fastai(lists, bs, seq_len, shuffle, drop_last):
    "Also in a second, newly shuffled epoch, and with texts that are empty"
    kw = dict(bs=bs, seq_len=seq_len, shuffle=shuffle, drop_last=drop_last)
    assume(sum(map(len, lists)) > bs)
    res = []
    for cls in (LMDataLoader, FlatLMDataLoader):
        random.seed(3)
        dl = cls(texts_of(lists), lens=[*map(len, lists)], **kw)
        res.append((len(dl), epoch(dl), epoch(dl), epoch(dl.new(shuffle=False)), epoch(dl.new(seq_len=seq_len+1))))
    assert res[0] == res[1]

@given(lists, st.integers(0, 20))
def test_flat_ids(lists, max_ram):
    "All ids and the texts' ends, in memory or in a file"
    flat = flat_ids(iter(lists), max_ram=max_ram)
    assert flat.ids.tolist() == sum(lists, []) and flat.ends.tolist() == np.cumsum([*map(len, lists)]).tolist()
    texts = FlatTexts(flat, [Numericalize(VOCAB)])
    assert [t.tolist() for t in texts] == [texts[i-len(lists)].tolist() for i in range(len(lists))] == lists
    assert [t.tolist() for t in texts[1:]] == lists[1:]

def test_any_dataset():
    "What fastai's loader takes is taken"
    toks = [t.split() for t in texts_df().text]
    tl = TfmdLists(toks, [Numericalize(make_vocab(Counter(sum(toks, [])), 1))])
    for w in (0, 2): assert epoch(FlatLMDataLoader(tl, bs=4, seq_len=9, num_workers=w)) == epoch(LMDataLoader(tl, bs=4, seq_len=9))

@given(st.integers(12, 90), st.integers(1, 3), st.integers(1, 10))
def test_random_windows(n, bs, seq_len):
    "Windows of the corpus, each token about once, another draw each epoch, the same after the same seed"
    dl = FlatLMDataLoader(texts_of([[*range(n)]]), bs=bs, seq_len=seq_len, windows='random', shuffle=True)
    np.random.seed(0)
    batches = list(dl)
    x = torch.cat([b[0] for b in batches])
    assert x.shape == (len(dl)*bs, seq_len) and isinstance(x, LMTensorText) and isinstance(batches[0][1], TensorText)
    assert (torch.cat([b[1] for b in batches]) == x+1).all() and (x[:,1:] == x[:,:-1]+1).all()
    starts = np.sort(dl.starts)
    laid = np.sort((starts[0] + np.arange(dl.n)*seq_len) % (n-seq_len))
    assert len({*starts}) >= len({*laid}) - 1 and starts.max() < n-seq_len
    np.random.seed(0)
    assert [b[0].tolist() for b in dl] == [b[0].tolist() for b in batches]
    assert epoch(dl.new(shuffle=False)) == epoch(LMDataLoader(dl.dataset, lens=[n], bs=bs, seq_len=seq_len))

def test_random_windows_differ():
    dl = FlatLMDataLoader(texts_of([[*range(90)]]), bs=2, seq_len=5, windows='random', shuffle=True)
    assert epoch(dl) != epoch(dl)

@given(st.integers(12, 90), st.integers(1, 3), st.integers(1, 10), st.integers(1, 40))
def test_epoch_len(n, bs, seq_len, epoch_len):
    "So many batches, no window twice before all have come; what is not shuffled has them all, in order"
    kw = dict(bs=bs, seq_len=seq_len, windows='random')
    dl,whole = (FlatLMDataLoader(texts_of([[*range(n)]]), shuffle=True, epoch_len=e, **kw) for e in (epoch_len,None))
    for _ in range(2):
        x = torch.cat([b[0] for b in dl])
        assert x.shape == (epoch_len*bs, seq_len) and len(dl) == epoch_len
        assert len({*dl.starts.tolist()}) >= min(epoch_len*bs, n//seq_len - 1)
    assert dl.new(seq_len=1).epoch_len == epoch_len
    for o in (dl.new(shuffle=False), dl.new(windows='continuous', shuffle=False)): assert epoch(o) == epoch(whole.new(shuffle=False))

def test_epoch_len_learner():
    "Epochs of a fit are as long as asked, validation is whole"
    kw = dict(tok_tfm=CharTokenizer(), bs=2, seq_len=8)
    texts = texts_df().text.tolist()
    dls = LMDataLoaders.from_texts(texts[:60], texts[60:], windows='random', epoch_len=3, **kw)
    learn = quiet(transformer_lm_learner(dls, **SMALL))
    learn.fit(2)
    assert len(learn.recorder.lrs) == 6 and len(dls.valid) == len(LMDataLoaders.from_texts(texts[:60], texts[60:], **kw).valid)
    for bad in (dict(windows='random', epoch_len=0), dict(windows='random', epoch_len=2.5), dict(epoch_len=3)):
        with pytest.raises(ValueError, match='epoch_len='): LMDataLoaders.from_texts(texts, texts, **kw, **bad)

def test_any_length_and_type():
    "Rows far longer than fastai's 72 tokens, from one text of ten million ids of two bytes"
    ids = np.zeros(10**7, dtype=np.uint16)
    dl = FlatLMDataLoader(FlatTexts(FlatIds(ids, np.array([len(ids)])), [Numericalize(VOCAB)]), bs=64, seq_len=2048, windows='random', shuffle=True)
    assert dl.one_batch()[0].shape == (64, 2048)

TOKS = dict(words=BaseTokenizer, characters=CharTokenizer, pieces=lambda: BPETokenizer(300))
each_tok = pytest.mark.parametrize('tok', TOKS.values(), ids=TOKS)

@each_tok
def test_loaders(tok):
    "Ids as the tokenizer and the vocabulary say, from a frame or from streams; validation is not counted"
    df = texts_df()
    df.loc[df.is_valid, 'text'] += ' unseen words'
    kw = dict(bs=4, seq_len=11, min_freq=1, rules=[])
    dls = LMDataLoaders.from_df(df, text_col='text', valid_col='is_valid', tok_tfm=tok(), **kw)
    t,vocab = dls.train_ds.tfms.fs[0].tok, dls.vocab
    for ds,texts in ((dls.train_ds, df.text[~df.is_valid]), (dls.valid_ds, df.text[df.is_valid])):
        want = [['xxbos', *(o if o in vocab else 'xxunk' for o in toks)] for toks in t(texts.tolist())]
        assert [[vocab[i] for i in ids] for ids in ds] == want
    assert 'unseen' not in vocab and vocab[1] == 'xxpad'
    if tok is not TOKS['pieces']:
        again = LMDataLoaders.from_texts(iter(df.text[~df.is_valid]), iter(df.text[df.is_valid]), tok_tfm=tok(), **kw)
        assert again.vocab == vocab and (again.train_ds.flat.ids == dls.train_ds.flat.ids).all()
    assert dls.decode_batch(dls.one_batch())[0][0]

@pytest.mark.parametrize('windows', ['continuous','random'])
@each_tok
def test_learner(tok, windows, tmp_path):
    "Trains, writes, scores, shows and comes back from its export"
    dls = LMDataLoaders.from_df(texts_df(), text_col='text', valid_col='is_valid', tok_tfm=tok(), bs=4, val_bs=2, seq_len=16, windows=windows, folder=tmp_path)
    learn = quiet(transformer_lm_learner(dls, path=tmp_path, **SMALL))
    learn.fit(1, 1e-2)
    logp,y = learn.get_preds()
    assert logp.shape == y.shape == (2, dls.valid.bl) and learn.get_preds()[0].equal(logp)
    prompt = 'the film was '
    new = learn.predict(prompt, n_tokens=5, temperature=0)
    assert new.startswith(prompt) and learn.text_logprobs('the film').shape[1] == 2
    learn.show_results(max_n=1)
    x,_ = dls.test_dl(['the film', 'a story'], bs=1).one_batch()
    assert [dls.vocab[i] for i in x[0]].count('xxbos') == 2
    learn.export('l.pkl')
    assert len(learn.dls.train_ds) and load_learner(tmp_path/'l.pkl').predict(prompt, n_tokens=5, temperature=0) == new
    with pytest.raises(ValueError, match='transformer_lm_learner'): transformer_classifier_learner(dls, **SMALL)

def test_files_and_ids(tmp_path):
    df = texts_df(20)
    for i,t in enumerate(df.text): (tmp_path/f'{i}.txt').write_text(t)
    kw = dict(bs=2, seq_len=8)
    files = [tmp_path/f'{i}.txt' for i in range(20)]
    a = LMDataLoaders.from_files(files[:15], files[15:], tok_tfm=BPETokenizer(300), **kw)
    b = LMDataLoaders.from_texts(df.text[:15].tolist(), df.text[15:], tok_tfm=BPETokenizer(300), **kw)
    assert (a.train_ds.flat.ids == b.train_ds.flat.ids).all() and epoch(a.valid) == epoch(b.valid)
    tok = a.train_ds.tfms.fs[0].tok
    np.save(tmp_path/'ids.npy', a.train_ds.flat.ids.astype(np.uint16))
    c = LMDataLoaders.from_ids(np.load(tmp_path/'ids.npy', mmap_mode='r'), b.valid_ds.flat.ids, tok.vocab, tok_tfm=tok, **kw)
    assert epoch(c.valid) == epoch(a.valid) and c.train.new(shuffle=False).one_batch()[0].equal(a.train.new(shuffle=False).one_batch()[0])

def test_csv_and_frames(tmp_path):
    "A file gives what its frame gives; a frame to read later is read by the column of training"
    df = texts_df(20).rename(columns={'text':'My text'})
    df.to_csv(tmp_path/'labels.csv', index=False)
    kw = dict(text_col='My text', valid_col='is_valid', tok_tfm=CharTokenizer(), bs=2, seq_len=8)
    a,b = LMDataLoaders.from_csv(tmp_path, **kw),LMDataLoaders.from_df(df, path=tmp_path, **kw)
    assert epoch(a.valid) == epoch(b.valid) and a.vocab == b.vocab and a.path == b.path == tmp_path
    new = a.test_dl(df[:4], bs=1)
    assert epoch(new) == epoch(a.test_dl(df['My text'][:4], bs=1)) and len(new)
    with pytest.raises(ValueError, match="no column is called 'My text', .*'label'"): a.test_dl(df[['label']])
    with pytest.raises(TypeError, match="'delimeter': did you mean 'delimiter'"): LMDataLoaders.from_csv(tmp_path, 'missing.csv', delimeter=';')
    df.assign(label='ä').to_csv(tmp_path/'latin.csv', index=False, encoding='latin-1')
    assert LMDataLoaders.from_csv(tmp_path, 'latin.csv', encoding='latin-1', **kw).vocab == a.vocab

bad = {'half a sign':(lambda: LMDataLoaders.from_texts(['a', 'b \ud83d'], tok_tfm=CharTokenizer()), ValueError, 'text number 1 holds .*half of a sign'),
       'no string':(lambda: LMDataLoaders.from_texts(['a', 3], tok_tfm=CharTokenizer()), TypeError, 'text number 1 is 3'),
       'missing':(lambda: LMDataLoaders.from_df(pd.DataFrame(dict(text=['a', None])), tok_tfm=CharTokenizer(), seed=0), ValueError, 'no text'),
       'once':(lambda: LMDataLoaders.from_texts(iter(['a']), tok_tfm=BPETokenizer(300)), ValueError, 'only once'),
       'too few':(lambda: LMDataLoaders.from_texts(['abc'], tok_tfm=CharTokenizer()), ValueError, '4 tokens, fewer than 65'),
       'windows':(lambda: FlatLMDataLoader(texts_of([[1,2]]), windows='any'), ValueError, "windows='any'"),
       'seq_len':(lambda: FlatLMDataLoader(texts_of([[1,2]]), seq_len=0), ValueError, 'seq_len=0'),
       'no window':(lambda: FlatLMDataLoader(texts_of([[1,2]]), seq_len=2, windows='random'), ValueError, '2 tokens hold no random window'),
       'ids':(lambda: LMDataLoaders.from_ids([1,200], [], VOCAB, BaseTokenizer()), ValueError, 'from 1 to 200'),
       'floats':(lambda: LMDataLoaders.from_ids(np.zeros(9), [], VOCAB, BaseTokenizer()), ValueError, 'float64'),
       'list of floats':(lambda: LMDataLoaders.from_ids([2.5,3.7], [], VOCAB, BaseTokenizer()), ValueError, 'float64: give one array of integers'),
       'text columns':(lambda: LMDataLoaders.from_df(texts_df(20), text_col=['text','label'], tok_tfm=CharTokenizer()), ValueError, r"text_col=.'text', 'label'.: name one column; .* df\[\['text', 'label'\]\].agg\(' '.join, axis=1\)"),
       'no text column':(lambda: LMDataLoaders.from_df(texts_df(20), text_col=[], tok_tfm=CharTokenizer()), ValueError, r"text_col=\[\] names no column"),
       'frame':(lambda: LMDataLoaders.from_texts(texts_df(20), tok_tfm=CharTokenizer()), TypeError, "a DataFrame is no list of texts: pass one of its columns, or use from_df"),
       'frame for validation':(lambda: LMDataLoaders.from_texts(['a text']*9, texts_df(20), tok_tfm=CharTokenizer(), bs=2), TypeError, 'a DataFrame is no list'),
       'frame to learn from':(lambda: LMDataLoaders.from_texts(texts_df(20), tok_tfm=BPETokenizer(300)), TypeError, 'a DataFrame is no list'),
       'dict':(lambda: LMDataLoaders.from_texts(dict(text=['a']), tok_tfm=CharTokenizer()), TypeError, 'a dict is no list of texts'),
       'typo':(lambda: LMDataLoaders.from_texts(['abc'], bach=2), TypeError, 'bach')}

@pytest.mark.parametrize('call,error,match', bad.values(), ids=bad)
def test_errors(call, error, match):
    with pytest.raises(error, match=match): call()

TEXTS = texts_df(40).text.tolist()

@pytest.mark.parametrize('call', [
    lambda tok: LMDataLoaders.from_texts(texts_df(20), tok_tfm=tok), lambda tok: LMDataLoaders.from_texts(None, tok_tfm=tok),
    lambda tok: LMDataLoaders.from_texts([Path('a.txt')], tok_tfm=tok), lambda tok: LMDataLoaders.from_texts([*TEXTS, np.nan], tok_tfm=tok),
    lambda tok: LMDataLoaders.from_texts(TEXTS, 'valid.txt', tok_tfm=tok), lambda tok: LMDataLoaders.from_files([__file__, 'typo.txt'], tok_tfm=tok)],
    ids=['frame','none','path','nan','valid','file'])
def test_nothing_is_learned_of_what_is_refused(call):
    "The mended call learns the pairs of its texts"
    tok = BPETokenizer(300)
    with pytest.raises((TypeError,FileNotFoundError)): call(tok)
    assert not tok.ready
    dls = LMDataLoaders.from_texts(TEXTS, tok_tfm=tok, bs=2, seq_len=4)
    assert dls.vocab == BPETokenizer(300).train(TEXTS).vocab

LETTERS = ['xxunk','xxpad','xxbos','▁',*'abcdefghijklmnopqrstuvwxyz']

@pytest.mark.parametrize('given', [np.array, pd.Series, lambda v: pd.Series(v, index=range(1, len(v)+1)), tuple], ids=['array','series','series from 1','tuple'])
def test_vocabulary_as_it_is_given(given):
    "Any sequence of tokens numbers texts as the list does, xxbos before each text included"
    kw = dict(text_col='text', valid_col='is_valid', tok_tfm=CharTokenizer(), bs=2, seq_len=4)
    want = LMDataLoaders.from_df(texts_df(20), text_vocab=LETTERS, **kw)
    dls = LMDataLoaders.from_df(texts_df(20), text_vocab=given(LETTERS), **kw)
    other = TransformerDataLoaders.from_df(texts_df(20), text_vocab=given(LETTERS), is_lm=True, num_workers=0, **kw)
    ids = [o.tolist() for o in want.valid_ds]
    assert ids == [o.tolist() for o in dls.valid_ds] == [o.tolist() for o, in other.valid_ds] and ids[0][0] == 2

@pytest.mark.parametrize('make', [LMDataLoaders.from_df, TransformerDataLoaders.from_df])
def test_vocabulary_without_order(make):
    for given in ({t:i for i,t in enumerate(LETTERS)}, {*LETTERS}):
        with pytest.raises(ValueError, match=r'text_vocab=.*sorted\(d, key=d.get\)'): make(texts_df(20), text_vocab=given)

def test_token_twice():
    "Prompts and batches have one number for it"
    dls = LMDataLoaders.from_texts(TEXTS, TEXTS[:9], tok_tfm=CharTokenizer(), text_vocab=[*LETTERS,'a','xxfake','xxfake'], bs=2, seq_len=4)
    assert [o.tolist() for o in dls.valid_ds] == [o.tolist() for o in TextCodec(dls).encode(TEXTS[:9])]

@pytest.mark.parametrize('kw', [dict(is_lm=True), dict(label_col='label'), None], ids=['lm','labels','stream'])
def test_vocabulary_without_xxunk(kw):
    "A warning names what becomes its first token, unless that says so itself"
    df = texts_df(20)
    def make(vocab):
        own = dict(text_col='text', valid_col='is_valid', tok_tfm=CharTokenizer(), text_vocab=vocab, bs=2)
        return LMDataLoaders.from_df(df, **own) if kw is None else TransformerDataLoaders.from_df(df, num_workers=0, **own, **kw)
    with pytest.warns(UserWarning, match="'e' is not in the vocabulary and becomes its first token, 't'.*'xxunk'"):
        make(['t',*(o for o in LETTERS if o not in 'et' and o != 'xxunk')])
    with warnings.catch_warnings():
        warnings.filterwarnings('error', '.*not in the vocabulary')
        for unk in ('xxunk','<unk>','[UNK]'): make([unk,*(o for o in LETTERS[1:] if o != 'e')])
        make(['t',*(o for o in LETTERS if o not in ('t','xxunk'))])

@pytest.mark.parametrize('call,match', [
    (lambda tok: LMDataLoaders.from_texts(TEXTS, 'valid.txt', tok_tfm=tok), 'one str is not many'),
    (lambda tok: LMDataLoaders.from_texts(TEXTS, texts_df(20), tok_tfm=tok), 'a DataFrame is no list'),
    (lambda tok: LMDataLoaders.from_texts(TEXTS, text_vocab=['xxunk','film'], tok_tfm=tok), "'xxpad' is not among"),
    (lambda tok: LMDataLoaders.from_df(texts_df(20), valid=TEXTS, tok_tfm=tok), "no option 'valid': did you mean 'valid_")],
    ids=['str','frame','vocabulary','option'])
def test_refused_before_any_work(call, match):
    class Tok(BatchTokenizer):
        def __call__(self, items): raise AssertionError('texts are cut')
    with pytest.raises((ValueError,TypeError), match=match): call(Tok())
    for f in (LMDataLoaders.from_df, LMDataLoaders.from_csv): assert 'valid' not in inspect.signature(f).parameters

def test_processes_that_cut():
    "fastai's tokenizer and streams of texts: the ids are those of one process"
    kw = dict(tok_tfm=BaseTokenizer(), min_freq=1, bs=2, seq_len=4)
    one,two = (LMDataLoaders.from_texts(iter(TEXTS), TEXTS[:9], n_workers=n, **kw) for n in (0,2))
    assert one.vocab == two.vocab and one.train_ds.flat.ids.tolist() == two.train_ds.flat.ids.tolist()

def test_lists_of_ids():
    "Numbers of any kind, as long as they are whole"
    for ids in ([2,3]*9, (2,3)*9, torch.tensor([2,3]*9), range(2, 20)):
        dls = LMDataLoaders.from_ids(ids, [], VOCAB, BaseTokenizer(), bs=2, seq_len=4)
        assert dls.train_ds.flat.ids.tolist() == list(ids)

def test_test_dl(tmp_path):
    "A text, a row, a generator, files, tokens and ids are read alike; what is none is named at the call"
    dls = LMDataLoaders.from_df(texts_df(), text_col='text', tok_tfm=BaseTokenizer(), min_freq=1, rules=[], seed=0, bs=2, seq_len=4)
    text = 'the film was warm and the story was dull'
    (tmp_path/'a.txt').write_text(text)
    row = pd.Series(dict(text=text, label='pos'))
    ids = dls.test_dl(text, bs=1).dataset[0]
    for item in ([text], row, dict(row), [row], pd.DataFrame([row]), (t for t in [text]), [tmp_path/'a.txt'], [text.split()], [ids]):
        assert epoch(dls.test_dl(item, bs=1)) == epoch(dls.test_dl(text, bs=1)) != []
    for item,match in (([], 'no text'), ([None], 'number 0 is None'), (['a',3], 'number 1 is 3'), (5, '5 is a int'), ({'a','b'}, 'a set has no order'), ({'txt':'a'}, "no column is called 'text'"),
                       (pd.DataFrame(dict(text=['a',None])), "'text' has no text .*index 1"), (texts_df()[:0], 'no rows')):
        with pytest.raises((ValueError,TypeError), match=match): dls.test_dl(item)

def test_one_text_is_not_many():
    "A string is refused where texts are asked for; a path is one file"
    with pytest.raises(TypeError, match='one str is not many texts'): LMDataLoaders.from_texts('a long text '*50, tok_tfm=CharTokenizer(), bs=2, seq_len=4)

@pytest.mark.parametrize('text', ['天地玄黄宇宙'*15, 'теплый фильм '*13, '天'*255, 'a\0b'*40, 'a'*5000], ids=['chinese','russian','255','null','long'])
def test_first_text_is_no_name_of_a_file(text):
    "Texts that no file can be called: of more than 255 bytes, or with a null byte"
    dls = LMDataLoaders.from_texts([text]*2, [text], tok_tfm=CharTokenizer(), bs=2, seq_len=16)
    assert [dls.vocab[i] for i in dls.valid_ds.flat.ids[1:]] == [*CharTokenizer()([text])][0]

def test_first_text_is_the_name_of_a_file(tmp_path):
    "A warning names the way to read files"
    (file := tmp_path/'a.txt').write_text('a warm film '*50)
    with pytest.warns(UserWarning, match='from_files'): LMDataLoaders.from_texts([str(file)], tok_tfm=CharTokenizer(), bs=2, seq_len=4)

@pytest.mark.parametrize('max_ram,most', [(2**27,5), (50_000,1)])
def test_memory(monkeypatch, max_ram, most):
    "A stream of texts takes the four bytes of an id for a token, and a file none"
    monkeypatch.setattr(flat_ids, '__defaults__', (None,max_ram,None))
    def peak(n):
        tracemalloc.start()
        dls = LMDataLoaders.from_texts(('all in a row '*100 for _ in range(n)), tok_tfm=CharTokenizer(), bs=2)
        res = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return res, len(dls.train_ds.flat.ids)
    (few,n),(many,m) = peak(1200),peak(2400)
    assert many-few < most*(m-n)

@pytest.mark.parametrize('vocab', [None, ['xxunk','xxpad','xxbos','xxeos',*'abc▁']])
def test_file_in_use(tmp_path, monkeypatch, vocab):
    "A file of ids that is mapped stays whole while another takes its name; a failure leaves the old one"
    monkeypatch.setattr(flat_ids, '__defaults__', (None,3,None))
    kw = dict(tok_tfm=CharTokenizer(), text_vocab=vocab, folder=tmp_path, bs=1, seq_len=2, windows='random')
    first = LMDataLoaders.from_texts(['abc abc']*9, ['abc'], **kw)
    old,kept = first.train_ds.flat.ids, (tmp_path/'train.ids').read_bytes()
    assert read_ids(tmp_path/'train.ids').ids.tolist() == old.tolist()
    def texts():
        yield 'a'*50
        raise OSError('no more')
    with pytest.raises(OSError, match='no more'): LMDataLoaders.from_texts(texts(), **kw)
    assert (tmp_path/'train.ids').read_bytes() == kept
    want = old.tolist()
    new = LMDataLoaders.from_texts(['b'*4]*3, ['abc'], **kw).train_ds.flat.ids
    assert old.tolist() == want and read_ids(tmp_path/'train.ids').ids.tolist() == new.tolist() != want
    assert sorted(o.name for o in tmp_path.iterdir()) == ['train.ids','valid.ids']

class _Letters:
    "A tokenizer of one's own, as fastai's are: a function of texts"
    rules = ()
    def __call__(self, items): return (list(t.replace(' ', '_')) for t in items)

class _Known(_Letters):
    "With its vocabulary"
    vocab = ['xxunk','xxpad','xxbos',*'abcdefghijklmnopqrstuvwxyz_']

class _Unmarked(_Letters):
    "With a vocabulary that has no xxbos"
    vocab = ['xxunk','xxpad',*'abcdefghijklmnopqrstuvwxyz_']

@pytest.mark.parametrize('backwards', [False,True])
@pytest.mark.parametrize('tok', [CharTokenizer, lambda: BPETokenizer(300), _Letters, _Known, BaseTokenizer], ids=['char','bpe','own','known','words'])
def test_frames_of_texts_begin_with_xxbos(tok, backwards):
    "Whatever the tokenizer: once before each text, in training and in use, as in `LMDataLoaders`"
    df = texts_df()
    kw = dict(text_col='text', valid_col='is_valid', bs=4, seq_len=8)
    dls = TransformerDataLoaders.from_df(df, is_lm=True, tok_tfm=tok(), backwards=backwards, num_workers=0, **kw)
    bos,way = dls.vocab.index('xxbos'), -1 if backwards else 1
    for ds,dl in zip((dls.train_ds, dls.valid_ds), dls.loaders):
        ids = [x.tolist()[::way] for x, in ds]
        assert all(o[0] == bos and o.count(bos) == 1 for o in ids)
        assert [*dl.lens] == [*map(len, ids)] == ds.items.text_length.tolist()
    if not backwards:
        other = LMDataLoaders.from_df(df, tok_tfm=tok(), text_vocab=list(dls.vocab), **kw)
        assert ids == [o.tolist() for o in other.valid_ds]
    learn = quiet(transformer_lm_learner(dls, **SMALL))
    texts = df.text[df.is_valid].tolist()
    assert [o.tolist()[::way] for o in learn.codec.encode(texts)] == ids
    if tok is CharTokenizer: assert learn.codec.encode([''])[0].tolist() == [bos]
    whole = dls.valid_ds.items
    for items in (texts, df[df.is_valid], whole, whole.assign(text=[t[1:] for t in whole.text], text_length=[len(t)-1 for t in whole.text])):
        dl = dls.test_dl(items, num_workers=0)
        assert [x.tolist()[::way] for x, in dl.dataset] == ids and [*dl.lens] == [*map(len, ids)]

def test_no_xxbos_where_none_was(tmp_path):
    "Without it in the vocabulary, and in classification, nothing changes; a published model reads the same"
    df = texts_df()
    kw = dict(text_col='text', valid_col='is_valid', bs=4, num_workers=0)
    for o in (dict(tok_tfm=_Unmarked()), dict(tok_tfm=_Known(), starts=False)):
        none = TransformerDataLoaders.from_df(df, is_lm=True, seq_len=8, **kw, **o)
        assert len(none.valid_ds[0][0]) == len(df.text[df.is_valid].iloc[0])
    dls = TransformerDataLoaders.from_df(df, label_col='label', tok_tfm=CharTokenizer(), **kw)
    assert len(dls.valid_ds[0][0]) == len(df.text[df.is_valid].iloc[0])
    learn = quiet(transformer_lm_learner(TransformerDataLoaders.from_df(df, is_lm=True, tok_tfm=CharTokenizer(), seq_len=8, **kw), path=tmp_path, **SMALL))
    learn.fit(1)
    learn.publish(tmp_path/'lm')
    assert load_published(tmp_path/'lm').predict('warm', n_tokens=5, temperature=0) == learn.predict('warm', n_tokens=5, temperature=0)
    learn.export(tmp_path/'l.pkl')
    assert load_learner(tmp_path/'l.pkl').predict('warm', n_tokens=5, temperature=0) == learn.predict('warm', n_tokens=5, temperature=0)

def test_pretraining_reads_what_the_classifier_reads():
    "With a tokenizer without rules, too: `best_classifier` finds the labelled texts among all by their ids"
    df = texts_df().drop_duplicates('text')
    lm,clf = read_loaders(df, 'text', 'label', ['a clever film of acting'], df.is_valid.to_numpy(), seed=0, tok_tfm=BPETokenizer(300), bs=4, seq_len=8, num_workers=0)
    every = {o.tobytes() for o in ids_of(lm)}
    assert {o.tobytes() for o in ids_of(clf)[:(~df.is_valid).sum()]} < every and len(every) > 1
