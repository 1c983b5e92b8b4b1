"Text and ids: the codec against fastai's own path, targets, special tokens"
import pickle, random
import numpy as np, pandas as pd, pytest, torch
from concurrent.futures import ThreadPoolExecutor
from hypothesis import given, settings, strategies as st
from fastai.text.all import (
    accuracy, accuracy_multi, BaseTokenizer, CategoryBlock, ColReader, ColSplitter, DataBlock, decode_spec_tokens, defaults,
    L, mse, MultiCategoryBlock, Numericalize, RegressionBlock, SentencePieceTokenizer, TextBlock, TextDataLoaders, WordTokenizer)
from fastai_txf.all import (
    BPETokenizer, CharTokenizer, decode_ids, encode_text, FastSpacyTokenizer, LMDataLoaders,
    pad_index, Seq2SeqDataLoaders, text_vocab, TextCodec, tokenize_like, TransformerDataLoaders, transformer_lm_learner)
from fastai_txf.text.codec import join_columns
from fastai_txf.text.plain import PlainCodec
from fastai_txf.text.special import BARRED, FILLERS, STOPS, token_places
from fastai_txf.text.target import Target
from fastai_txf.text.tokens import as_tokenizer, BatchTokenizer, ForeignTokenizer
from fixtures import texts_df

DF = texts_df(40).assign(title=[f'Title {i%3}' for i in range(40)])
KW = dict(text_col='text', label_col='label', valid_col='is_valid', bs=4)
made = dict(words=lambda: TransformerDataLoaders.from_df(DF, **KW),
            plain=lambda: TextDataLoaders.from_df(DF, **KW),
            characters=lambda: TransformerDataLoaders.from_df(DF, tok_tfm=CharTokenizer, **KW),
            pieces=lambda: TransformerDataLoaders.from_df(DF, tok_tfm=BPETokenizer(300), **KW),
            lm=lambda: TextDataLoaders.from_df(DF, **{**KW, 'label_col':None}, is_lm=True),
            backwards=lambda: TransformerDataLoaders.from_df(DF, **KW, backwards=True),
            stream=lambda: LMDataLoaders.from_df(DF, text_col='text', valid_col='is_valid', bs=2),
            columns=lambda: TransformerDataLoaders.from_df(DF, **{**KW, 'text_col':['title','text']}))

@pytest.fixture(scope='module', params=made.values(), ids=made)
def dls(request): return request.param()

@pytest.fixture(scope='module')
def words(): return made['words']()

@pytest.fixture(scope='module')
def two(): return made['columns']()

VALID = DF[DF.is_valid]

def ids_of(ds): return [o[0] if isinstance(o, tuple) else o for o in ds]

# Against the ids of training

def test_encode_is_training(dls):
    "The ids of a frame are those that fastai's set-up gave the same rows; of each row alone, too"
    codec,want = TextCodec(dls), ids_of(dls.valid_ds)
    got = codec.encode(VALID)
    assert len(got) == len(want) and all(a.equal(b) for a,b in zip(got, want))
    for row,ids in zip(VALID.iloc, want):
        for one in (row, dict(row)): assert codec.encode(one)[0].equal(ids)
        assert codec.is_one(row) and codec.is_one(dict(row))
    rows = [row for _,row in VALID.iterrows()]
    assert all(a.equal(b) for a,b in zip(codec.encode(rows), want)) and not codec.is_one(rows)

def test_strings_are_training(dls):
    "Lists, series and single strings, too, unless several columns need their marks"
    codec = TextCodec(dls)
    if len(codec.text_cols) > 1: return
    want = ids_of(dls.valid_ds)
    for many in (VALID.text, VALID.text.tolist(), VALID.text.to_numpy(), tuple(VALID.text)):
        assert all(a.equal(b) for a,b in zip(codec.encode(many), want)) and not codec.is_one(many)
    assert codec.encode(VALID.text.iloc[0])[0].equal(want[0]) and codec.is_one('a text')
    other = VALID.rename(columns=dict(text='review'))
    assert all(a.equal(b) for a,b in zip(codec.encode(other, 'review'), want))
    assert encode_text(dls, VALID.text.iloc[0]).equal(want[0])

def test_decode_is_fastais(dls):
    "Joined as fastai's transforms do it, after the special tokens are taken out"
    codec = TextCodec(dls)
    for ids in ids_of(dls.valid_ds):
        toks = [t for t in map(codec.vocab.__getitem__, ids) if t not in (*STOPS, *FILLERS)]
        if codec.tok.lossless: want = codec.tok.detokenize(toks)
        else: want = ' '.join(decode_spec_tokens(toks))
        assert codec.decode(ids) == codec.decode(ids.tolist()) == decode_ids(dls, ids) == want
        assert decode_ids(dls, pd.Series(ids, index=range(7, 7+len(ids)))) == decode_ids(dls, iter(ids)) == want

@pytest.mark.parametrize('tok', [CharTokenizer, lambda: BPETokenizer(300)])
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(st.text(st.characters(codec='utf-8'), max_size=20), min_size=1, max_size=4))
def test_round_trip(tok, texts):
    "A codec without loaders: `decode` is the inverse of `encode` for every text that is known"
    tok = as_tokenizer(tok()).learn(['a b', *texts])
    vocab = tok.vocab or [*defaults.text_spec_tok, *{t for ts in tok(texts) for t in ts}]
    codec = TextCodec(tok, vocab)
    assert [codec.decode(ids) for ids in codec.encode(texts)] == texts

def test_without_loaders():
    "Rules are the tokenizer's, or fastai's, or those that are given"
    vocab = [*defaults.text_spec_tok, 'the', 'film', 'The', 'Film']
    want = Numericalize(vocab)
    codec = TextCodec(BaseTokenizer, vocab)
    assert codec.encode('The film')[0].equal(want('xxbos xxmaj the film'.split()))
    assert TextCodec(BaseTokenizer(), vocab, rules=[]).encode('The Film')[0].equal(want(['The','Film']))
    assert codec.text_cols == ['text'] and not codec.backwards and codec.sep == ' '
    with pytest.raises(TypeError, match='holds no tokens'): TextCodec(BaseTokenizer)

def test_vocabulary_of_ones_own(dls):
    "A list of tokens that is asked for may be changed: the loaders, their codec and their numbers stay"
    codec,n = TextCodec(dls), len(text_vocab(dls))
    for o in (text_vocab(dls), text_vocab(codec.vocab)): o.insert(1, 'new')
    assert len(text_vocab(dls)) == len(codec.vocab) == n and pad_index(dls) == codec.vocab.index('xxpad') == 1

@pytest.mark.parametrize('take', [
    lambda v: TransformerDataLoaders.from_df(DF, text_vocab=v, **KW), lambda v: TextCodec(BaseTokenizer(), v),
    lambda v: TransformerDataLoaders.from_df(DF, text_vocab=v, is_lm=True, **KW), lambda v: PlainCodec(v, None),
    lambda v: LMDataLoaders.from_df(DF, text_col='text', valid_col='is_valid', bs=2, text_vocab=v)])
def test_vocabulary_that_is_given(take):
    "A list of tokens that was given may be changed afterwards: what was made with it stays"
    mine = text_vocab(made['words']())
    res,before = take(mine), [*mine]
    mine[:] = ['other']
    assert text_vocab(res.vocab) == before

def test_sides():
    "Each side of pairs has its own column and vocabulary"
    df = pd.DataFrame(dict(a=['eins drei','drei'], b=['one three','three'], v=[False,True]))
    df = pd.concat([df]*4, ignore_index=True)
    dls = Seq2SeqDataLoaders.from_df(df, src_col='a', tgt_col='b', valid_col='v', bs=2, min_freq=1,
                                     tok_tfm=BaseTokenizer())
    a,b = TextCodec(dls), TextCodec(dls, side=1)
    assert (a.text_cols, b.text_cols) == (['a'], ['b']) and a.vocab is not b.vocab
    x,y = dls.valid_ds[0]
    assert a.encode(df.iloc[1])[0].equal(x) and b.encode(df.iloc[1])[0].equal(y)
    assert a.decode(x) == 'drei' and b.decode(y) == 'three'
    assert a.prompts('drei')[0].equal(x[:-1]) # without xxeos

# What is given

def test_frame_is_not_changed(dls):
    df = VALID.copy()
    TextCodec(dls).encode(df)
    pd.testing.assert_frame_equal(df, VALID)

bad = [(5, TypeError, 'int'), (None, TypeError, 'NoneType'), ([], ValueError, 'no text'),
       (['a',3], TypeError, 'text number 1 is 3'), (VALID[:0], ValueError, 'no rows'),
       (VALID.drop(columns='text'), ValueError, "called 'text'"), ({'txt':'a'}, ValueError, "'text'"),
       (VALID.assign(text=None), ValueError, 'no text'), (VALID.assign(text=1.5), ValueError, 'float'),
       (VALID.iloc[0].drop('text'), ValueError, "no column 'text'"), ([VALID.iloc[0],'a'], TypeError, 'Series')]

@pytest.mark.parametrize('item,error,match', bad)
def test_what_is_no_text(words, item, error, match):
    with pytest.raises(error, match=match): TextCodec(words).encode(item)

def test_series_is_many(words):
    "Whatever its index, as long as the text's column is not in it"
    for s in (VALID.text, VALID.text[:1], VALID.set_index('title').text, pd.Series(['a','b'])):
        assert not TextCodec(words).is_one(s) and len(TextCodec(words).encode(s)) == len(s)

by_position = dict(
    labels=lambda: TextDataLoaders.from_df(DF[['text','label']], bs=4, seed=0),
    lm=lambda: TextDataLoaders.from_df(DF[['text','label']], bs=4, seed=0, is_lm=True))

@pytest.mark.parametrize('made', by_position.values(), ids=by_position)
def test_columns_by_position(made):
    "fastai's default is the first column: its name is known, or another order is refused"
    codec = TextCodec(made())
    want = codec.tokens(DF.text)
    for df in (DF[['text','label']], DF[['text']], DF[['text','label','title']], DF[['text','label']].rename(columns=str)):
        assert codec.tokens(df) == want
    for df in (DF[['title','text']], DF[['label','text']], DF[['title','text','label']]):
        if codec.text_cols == ['text']: assert codec.tokens(df) == want
        else:
            with pytest.raises(ValueError, match='do not stand as those of training'): codec.tokens(df)
    for cols in (['text','label'], ['label','text']):
        row = DF[cols].iloc[1]
        if codec.text_cols == ['text']: assert codec.is_one(row) and codec.tokens(row) == want[1:2]
        else:
            with pytest.raises(ValueError, match='row'): codec.tokens(row)

def test_numbered_columns():
    "A frame without a header: there are no names to go by"
    df = DF[['text','label']].set_axis([0,1], axis=1)
    codec = TextCodec(TextDataLoaders.from_df(df, bs=4, seed=0))
    assert codec.tokens(df) == codec.tokens(DF.text.tolist()) == codec.tokens(df[[0]])
    with pytest.raises(ValueError, match='do not stand'): codec.tokens(df[[1,0]])
    assert len(codec.tokens(df[0])) == len(df)

def test_numbered_rows(tmp_path):
    "Of a frame without a header: dictionaries are read, a series may be a row or texts"
    df = DF[['text','label']].set_axis([0,1], axis=1)
    dls = TransformerDataLoaders.from_df(df, bs=4, seed=0)
    codec = TextCodec(dls)
    plain = PlainCodec(codec.vocab, codec.tok, codec.rules, text_cols=codec.text_cols, other_cols=codec.other_cols)
    for c in (codec, plain):
        want = c.tokens(df[0].tolist())
        assert c.tokens(df.iloc[0].to_dict()) == c.tokens({0:df[0][0]}) == c.tokens(df[0][:1]) == want[:1]
        assert c.tokens([{1:'a', 0:t} for t in df[0]]) == c.tokens(df) == c.tokens(df[0]) == want
        for item in (df.iloc[0], df[0][:2]):
            for call in (c.tokens, c.is_one, dls.test_dl):
                with pytest.raises(ValueError, match=r'a row with the columns \[0, 1\], or 2 texts.*to_dict'): call(item)
    pairs = Seq2SeqDataLoaders.from_df(DF[['text','title']].set_axis([0,1], axis=1), bs=2, seed=0, min_freq=1)
    with pytest.raises(ValueError, match='or 2 texts'): pairs.test_dl(DF[['text','title']].set_axis([0,1], axis=1).iloc[0])
    assert len(pairs.test_dl({0:'a film'}).dataset) == 1

def test_row_without_the_text(words):
    "Is not many texts; the error names the column"
    for row in (DF.rename(columns=dict(text='review')).iloc[1], DF[['title','label']].iloc[1]):
        for call in (TextCodec(words).tokens, TextCodec(words).is_one, words.test_dl):
            with pytest.raises(ValueError, match="no column 'text'"): call(row)
    assert len(TextCodec(words).tokens(pd.Series(DF.text.values, index=[f'text{i}' for i in DF.index]))) == len(DF)

def test_texts_in_lists(words):
    "Rows as `values`, `fetchall` or `csv.reader` give them, and ids: they are no tokens, while lists of tokens are, also of one each"
    plain = PlainCodec(words.vocab[0], TextCodec(words).tok)
    for codec in (TextCodec(words), plain):
        for texts in (DF[['text']].values.tolist(), [('a warm film',)], [['film'],['a warm film']], [('A1','a warm film')], [('1','film'),(2,'film')], [[2,3]], [['a',None]], [[['a','film']]]):
            for call in (codec.tokens, codec.encode):
                with pytest.raises(ValueError, match=r"is no token.*df\[column\].tolist"): call(texts)
        for toks in ([['film'],['unseen']], ['a warm film'.split()], [['a'],['warm','film'],[]], codec.tokens(DF.text.tolist()), [[' a','\n','  ','▁film','two\nlines','10\xa0km']]):
            assert codec.tokens(toks) == toks
        assert codec.tokens([(t for t in ('a','film'))]) == [['a','film']]
    phrases = PlainCodec([*words.vocab[0],'New York'], None)
    assert phrases.tokens([['New York'],['San Marino','film']]) == [['New York'],['San Marino','film']]
    with pytest.raises(ValueError, match='^3 is no token'): phrases.tokens([['New York',3]])
    for rows in (DF[['text']].values.tolist(), [(1,'film')], DF[['title','text']].values.tolist()):
        for call in (words.test_dl, lambda o: encode_text(words, o)):
            with pytest.raises(ValueError, match='is no token'): call(rows)

@pytest.mark.parametrize('item', ['a film', ['a film'], pd.Series(['a film'])], ids=type)
def test_bare_strings_for_columns(two, item):
    "Each text of training says where a column begins"
    codec = TextCodec(two)
    for call in (codec.encode, codec.prompts, codec.tokens, codec.texts):
        with pytest.raises(ValueError, match=r"columns \['title', 'text'\].*'xxfld 1'"): call(item)
    for call in (lambda o: tokenize_like(two, o), two.test_dl, lambda o: encode_text(two, o)):
        with pytest.raises(ValueError, match='title'): call(item)
    marked = 'xxfld 1 Title 1 xxfld 2 a film'
    assert codec.encode(marked)[0].equal(codec.encode({'title':'Title 1', 'text':'a film'})[0])

@pytest.fixture(scope='module')
def marked():
    block = TextBlock.from_df('review', tok=BaseTokenizer(), mark_fields=True)
    return DataBlock([block, CategoryBlock], get_x=ColReader('text'), get_y=ColReader('label'),
                     splitter=ColSplitter()).dataloaders(DF.rename(columns=dict(text='review')), bs=4, num_workers=0)

def test_one_column_with_marks(marked):
    "A frame, a row, a dictionary, lists of them and a series of the column get the mark of training; a bare string is refused"
    df,want = VALID.rename(columns=dict(text='review')), ids_of(marked.valid_ds)
    rows = [row for _,row in df.iterrows()]
    codec = TextCodec(marked)
    plain = PlainCodec(codec.vocab, codec.tok, codec.rules, text_cols=['review'], marked=True, sep=codec.sep)
    for item in (df, df[['review']], rows, df.to_dict('records'), df.review, df.reset_index(drop=True).review):
        assert all(a.equal(b) for a,b in zip(codec.encode(item), want))
        assert plain.encode(item) == [ids.tolist() for ids in want]
    for o in (rows[0], dict(rows[0]), {'review':rows[0].review}):
        assert codec.encode(o)[0].equal(want[0]) and codec.is_one(o)
    for c in (codec, plain):
        assert [*map(list, c.encode(df, 'review'))] == [ids.tolist() for ids in want]
        assert c.texts(df) == [f'xxfld 1 {t}' for t in df.review] and c.rows(df) == [(t,) for t in df.review]
        assert c.texts(c.texts(df)) == c.texts(df)
        for item in ('a film', ['a film']):
            with pytest.raises(ValueError, match="does not say where the columns"): c.encode(item)

def test_columns_as_fastai_joins_them(dls):
    "`texts` are strings, whatever the columns and whether they are marked; `rows` those of each column"
    codec = TextCodec(dls)
    joined = join_columns(VALID, codec.text_cols, codec.marked)
    assert codec.texts(VALID) == [*joined]
    assert codec.rows(VALID) == [*VALID[codec.text_cols].itertuples(index=False, name=None)]

def test_tokens_pass(dls):
    "What is cut already is not cut again; a frame of tokens neither"
    codec = TextCodec(dls)
    toks = codec.tokens(VALID)
    assert codec.tokens(toks) == toks == codec.tokens(pd.DataFrame({codec.token_col:toks}))
    assert all(a.equal(b) for a,b in zip(codec.encode(toks), codec.encode(VALID)))

@pytest.mark.parametrize('col', ['text','review'])
def test_tokens_in_the_column_of_texts(col):
    "Are read there in a frame, a column, a row and a dictionary, and by a loader, too"
    df = DF.rename(columns=dict(text=col))
    dls = TransformerDataLoaders.from_df(df, **{**KW, 'text_col':col})
    codec,valid = TextCodec(dls), df[DF.is_valid]
    toks = codec.tokens(valid)
    cut = valid.assign(**{col:toks}, more=toks[::-1])
    for o in (cut, cut[col], cut.to_dict('records')): assert codec.tokens(o) == toks
    assert codec.tokens(cut, 'more') == toks[::-1]
    row = cut[['more',col]].iloc[0]
    assert codec.tokens(row) == codec.tokens(row.to_dict()) == toks[:1] and codec.is_one(row)
    assert all(a.equal(b) for (a,),(b,) in zip(dls.test_dl(cut).dataset, dls.test_dl(valid).dataset))

# Parts

def test_special_ids(dls):
    codec = TextCodec(dls)
    for ids,toks in ((codec.stops,STOPS), (codec.fillers,FILLERS), (codec.barred,BARRED)):
        assert ids == [i for i,t in enumerate(codec.vocab) if t in toks]
    assert codec.vocab[codec.pad_idx] == 'xxpad' and {*codec.fillers} < {*codec.barred}

def test_append(words):
    codec,chars = TextCodec(words), TextCodec(CharTokenizer, ['xxpad','a'])
    for a,b,want in (('a','b','a b'), ('a ','b','a b'), ('a',' b','a  b'), ('','b','b'), ('a','','a')):
        assert codec.append(a, b) == want and chars.append(a, b) == a+b

def test_never_changed(words):
    codec = TextCodec(words)
    with pytest.raises(AttributeError, match='never changed'): codec.vocab = []
    state = dict(vars(codec))
    codec.decode(codec.prompts('a film')[0])
    assert all(vars(codec)[k] is v for k,v in state.items())

def test_no_such_token(words):
    codec = TextCodec(words)
    for i in (-1, len(codec.vocab)):
        with pytest.raises(ValueError, match=f'no token number {i}'): codec.decode([2,i])

def test_prompt_without_tokens():
    "Where nothing stands before a text"
    codec = TextCodec(CharTokenizer, ['xxunk','xxpad','a'])
    assert codec.prompts('a')[0].tolist() == [2]
    with pytest.raises(ValueError, match='a text is empty'): codec.prompts(['a',''])

def test_pickle(dls):
    codec = TextCodec(dls)
    again = pickle.loads(pickle.dumps(codec))
    assert all(a.equal(b) for a,b in zip(codec.encode(VALID), again.encode(VALID)))

def test_eight_threads(dls):
    "One codec for all: each answer is that of the same call alone"
    codec,want = TextCodec(dls), TextCodec(dls).encode(VALID)
    texts = [codec.decode(ids) for ids in want]
    def work(seed):
        i = random.Random(seed).randrange(len(want))
        ids, = codec.encode(VALID.iloc[i])
        return ids.equal(want[i]) and codec.decode(ids) == texts[i]
    with ThreadPoolExecutor(8) as pool: assert all(pool.map(work, range(400)))

# The protocol

attributes = 'vocab rules detokenize lossless sep min_freq ready token_ids word_start'.split()
tokenizers = [CharTokenizer, lambda: BPETokenizer(300), FastSpacyTokenizer, BaseTokenizer,
              WordTokenizer, lambda: (lambda texts: (t.split() for t in texts)), lambda: None]

@pytest.mark.parametrize('tok', tokenizers)
def test_protocol(tok):
    "Every tokenizer has an answer to every question, and cuts as fastai would"
    tok = as_tokenizer(tok())
    assert isinstance(tok, BatchTokenizer) and as_tokenizer(tok) is tok
    assert tok.learn(['a b c']*9) is tok and tok.ready
    asked = {a:getattr(tok, a) for a in attributes}
    assert asked['min_freq'] == (1 if asked['lossless'] else 3)
    assert asked['sep'] == ('' if asked['lossless'] else ' ')
    toks, = tok.tokenize(['a b'], [])
    if tok.lossless: assert tok.join(toks) == tok.detokenize(toks) == 'a b'
    else: assert tok.join(toks) == ' '.join(toks)

class Sets:
    "A tokenizer of fastai's kind, with all that it may have"
    vocab,rules,tok = None, [str.upper], None
    def setup(self, items, rules): self.tok,self.vocab = 'ready', ['xxunk','xxpad','xxbos','xxeos',*items]
    def __call__(self, items): return (t.split('-') for t in items)
    def detokenize(self, toks): return '-'.join(toks)

def test_foreign():
    "What it has is used"
    tok = as_tokenizer(Sets)
    assert isinstance(tok, ForeignTokenizer) and not tok.ready and tok.vocab is None
    tok.learn(['A','B'], tok.rules)
    assert tok.ready and tok.vocab[4:] == ['A','B'] and tok.lossless
    codec = TextCodec(tok)
    assert codec.encode('a-b')[0].tolist() == [4,5] and codec.decode([4,5]) == 'A-B'

def test_vocabularies_of_others_are_no_lists():
    "spaCy's and torchtext's are objects; only a list of tokens is one"
    tok = as_tokenizer(lambda texts: ([t] for t in texts))
    assert tok.vocab is None
    class Odd(Sets): vocab = object()
    assert as_tokenizer(Odd).vocab is None

def test_one_tokenizer_for_both_sides():
    "It learns once, from both"
    df = pd.DataFrame(dict(a=['low lower']*8, b=['new newer']*8))
    for tok in (BPETokenizer(300), (t := BPETokenizer(300), t), Sets()):
        df2 = df if not isinstance(tok, Sets) else df.assign(a='LOW', b='NEW')
        a,b = (TextCodec(Seq2SeqDataLoaders.from_df(df2, tok_tfm=tok, bs=2), side=i) for i in (0,1))
        assert a.vocab == b.vocab

# Targets

targets = dict(category=({}, accuracy, ['neg','pos'], 2),
               multi=(dict(label_col='tags', label_delim=';'), accuracy_multi, ['a','b'], 2),
               encoded=(dict(label_col=['x','y']), accuracy_multi, ['x','y'], 2),
               regression=(dict(label_col='stars'), mse, None, 1),
               numbers=(dict(label_col=['stars','more']), mse, None, 2))

@pytest.mark.parametrize('kind', targets)
def test_target(kind):
    "From loaders, and the score from the metric of fastai"
    kw,metric,names,n_out = targets[kind]
    df = DF.assign(tags=['a;b','b']*20, x=[0,1]*20, y=[1,1]*20, stars=1.5, more=np.arange(40)/2,
                   label=['pos','neg']*20)
    dls = TransformerDataLoaders.from_df(df, **{**KW, **kw}, tok_tfm=BaseTokenizer())
    target = Target.of(dls)
    kind = dict(encoded='multi', numbers='regression').get(kind, kind)
    assert target == Target(kind, names, n_out) and target.metric is metric
    assert target.is_number == (names is None) and target.metric_name == ('mse' if target.is_number else 'accuracy')
    assert 'number' in target.describe() if target.is_number else all(n in target.describe() for n in names)
    probs = torch.rand(9, n_out)
    if kind == 'category': y = torch.randint(2, (9,)); want = (probs.argmax(1) == y).float().mean()
    elif kind == 'multi': y = (torch.rand(9, n_out) > .5).float(); want = ((probs > .5) == y).float().mean()
    else: y = torch.rand(9, n_out); want = ((probs-y)**2).mean()
    assert target.score(probs, y) == pytest.approx(float(want))

def test_no_target(words):
    for name in ('lm','stream'):
        with pytest.raises(ValueError, match='no labels'): Target.of(made[name]())

@pytest.mark.parametrize('cols', [['label','body'], ['body','label'], ['label','body','more']], ids=str)
def test_positions_from_the_end(cols):
    "A column that is counted from the end is the same as from the start"
    df = pd.DataFrame(dict(label=['x','y']*20, body=DF.text, more=DF.title))[cols]
    place = cols.index('body')
    kw = dict(is_lm=True, bs=4, seq_len=8, tok_tfm=BaseTokenizer(), num_workers=0)
    codecs = [TextCodec(TextDataLoaders.from_df(df, text_col=c, **kw)) for c in (place, place-len(cols))]
    for c in codecs: assert c.text_cols == [place] and c.other_cols == [o for o in cols if o != 'body'] and c.texts(df[:2]) == df.body[:2].tolist()

def test_positions_of_numpy():
    "The codec of a published model takes the position of a column as an int of NumPy's, too"
    codec = PlainCodec([*'ab'], CharTokenizer(), text_cols=['text'])
    df = pd.DataFrame(dict(text=['a','a'], other=['b','b']))
    assert codec.texts(df, text_col=1) == codec.texts(df, text_col=np.int64(1)) == ['b','b']
