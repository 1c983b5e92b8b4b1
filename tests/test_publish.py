"Published models: the learner's answers without fastai, nothing executed, nothing half-written"
import builtins, dataclasses, errno, hashlib, json, os, pickle, random, resource, shutil, signal, subprocess, sys, time, warnings
import pandas as pd, pytest, torch
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from hypothesis import given, HealthCheck, settings, strategies as st
from fastai.text.all import accuracy, BalancedAccuracy, BaseLoss, BaseTokenizer, BCEWithLogitsLossFlat, CategoryBlock, CrossEntropyLossFlat, defaults, FocalLoss, load_learner, lowercase
import fastai.text.core as core
from fastai_txf.all import (
    baseline, BPETokenizer, CharTokenizer, FastSpacyTokenizer, learner_from, LMDataLoaders, load_published, OnnxPredictor, PredictorPool, PRESETS,
    Seq2SeqDataLoaders, SelfAttention, stream_tokens, to_onnx, transformer_classifier_learner, transformer_lm_learner,
    to_hf, transformer_mlm_learner, transformer_seq2seq_learner, TransformerBlock, TransformerClassifier, TransformerDataLoaders, TransformerLM)
from fastai_txf.base import plain
from fastai_txf.model.layers import FEED_FORWARDS, NORMS
from fastai_txf.model.positions import POSITIONS, RotaryPositions
from fastai_txf.text.special import leading_space
from fastai_txf.share.bundle import FILES
from fastai_txf.share.sealed import json_text, seal
from fastai_txf.share.folder import write_folder
from fastai_txf.share.onnx import OnnxText
from fastai_txf.share.publish import bundle_files
from fastai_txf.text.special import RULES
from fixtures import quiet, SMALL, texts_df

root = Path(__file__).parents[1]
DF = texts_df(60).assign(title=[f'Title {i%3}' for i in range(60)])
KW = dict(text_col='text', label_col='label', valid_col='is_valid', bs=8)
toks = dict(words=lambda: None, fast=FastSpacyTokenizer, characters=CharTokenizer, pieces=lambda: BPETokenizer(300), split=BaseTokenizer)

def clf_dls(tok='split', **kw): return TransformerDataLoaders.from_df(DF, **{**KW, 'tok_tfm':toks[tok](), **kw})

def pairs():
    df = pd.DataFrame(dict(src=DF.text, tgt=DF.text.str[::-1].str[:30], is_valid=DF.is_valid))
    return Seq2SeqDataLoaders.from_df(df, valid_col='is_valid', tok_tfm=CharTokenizer, bs=8)

def lm_dls(tok='pieces'): return LMDataLoaders.from_df(DF, text_col='text', valid_col='is_valid', bs=2, seq_len=16, tok_tfm=toks[tok]())

def lm_frame(**kw): return TransformerDataLoaders.from_df(DF, **{**dict(text_col='text', is_lm=True, valid_col='is_valid', bs=2, seq_len=16, tok_tfm=BaseTokenizer()), **kw})

clf,lm = partial(transformer_classifier_learner, **SMALL),partial(transformer_lm_learner, **SMALL)
mlm,s2s = partial(transformer_mlm_learner, **SMALL),partial(transformer_seq2seq_learner, **SMALL)
tasks = dict(
    one=lambda **kw: clf(clf_dls(), **kw), words=lambda **kw: clf(clf_dls('words'), **kw), fast=lambda **kw: clf(clf_dls('fast'), **kw),
    many=lambda **kw: clf(clf_dls('characters', label_col='tags', label_delim=';'), **kw),
    numbers=lambda **kw: clf(clf_dls('pieces', label_col='score'), y_range=(0,1), **kw),
    columns=lambda **kw: clf(clf_dls(text_col=['title','text']), **kw), backwards=lambda **kw: clf(clf_dls(backwards=True), **kw),
    lm=lambda **kw: lm(lm_dls(), **kw), lm_words=lambda **kw: lm(TransformerDataLoaders.from_df(DF, text_col='text', is_lm=True, valid_col='is_valid', bs=2, seq_len=16), **kw),
    lm_columns=lambda **kw: lm(lm_frame(text_col=['title','text']), **kw), lm_backwards=lambda **kw: lm(lm_frame(backwards=True), **kw),
    mlm_columns=lambda **kw: mlm(clf_dls(text_col=['title','text']), **kw), mlm=lambda **kw: mlm(clf_dls(), **kw), pairs=lambda **kw: s2s(pairs(), **kw))

def stirred(learn):
    "Weights that differ from those of the start, as after training"
    torch.manual_seed(7)
    with torch.no_grad():
        for p in learn.model.parameters(): p += 0.2*torch.randn_like(p)
    return quiet(learn)

def odd_texts(n, long=3_000):
    "Texts of all kinds: empty, unknown, long, emoji, right to left, null bytes"
    rng = random.Random(0)
    signs = ['🙂','👩‍👩‍👧','שלום','مرحبا','\0','<br />','&amp;','A/B#c','NO','no','no','no','!!!!!','日本語','Żółw','it\'s','\n\n','\t','▁','xxunk','film','warm','Dull']
    texts = ['', ' ', 'qqq zzz', '\0\0', '🙂🙂🙂', 'שלום עולם', 'word '*long, 'WARM FILM']
    return texts + [' '.join(rng.choices(signs, k=rng.randint(1, 30))) for _ in range(n-len(texts))]

def marked(learn, texts): return [f'xxfld 1 t xxfld 2 {t}' for t in texts] if learn.codec.marked else texts

@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "`made(task, **options)`: a learner and its published folder, made once"
    kept,base = {}, tmp_path_factory.mktemp('published')
    def _made(task, **kw):
        key = f'{task}{sorted(kw.items())}'
        if key not in kept:
            learn = stirred(tasks[task](**kw))
            kept[key] = learn, learn.publish(base/str(len(kept)), trained=True)
        return kept[key]
    return _made

# Without fastai: the few functions of floor 0, the rules, the codec

def test_rules_are_fastais():
    "Each rule of one's own gives what fastai's gives"
    parts = st.sampled_from(['A','NASA','Word','w','!!!','no','no ','\\n','&lt;','<br />',' @-@ ','...','#39;','  ','/','\\','ΑΒ','ß','İ','\0','🙂','123','x'*4])
    @settings(max_examples=150)
    @given(t=st.lists(parts | st.text(max_size=6), max_size=12).map(''.join))
    def check(t):
        for name,rule in RULES.items(): assert rule(t) == getattr(core, name)(t), name
    check()
    assert [f.__name__ for f in defaults.text_proc_rules] == [*RULES]

def test_delegates():
    "The fallback shows the options that fastcore's shows"
    import inspect
    from fastcore.meta import delegates
    for to,kw in ((SelfAttention, dict(but=['p'])), (stream_tokens, {}), (lambda a, b=1, *, c: 0, dict(keep=True))):
        def f(x, p=1, **kwargs): pass
        def g(x, p=1, **kwargs): pass
        got,want = plain.plain_delegates(to, **kw)(f), delegates(to, **kw)(g)
        assert {*inspect.signature(got).parameters} == {*inspect.signature(want).parameters}

@pytest.mark.parametrize('task', ['one','words','many','numbers','columns','lm','pairs'])
def test_codec_is_the_learners(made, task):
    "Ids and texts of the published codec are those of the learner's, for texts drawn at random"
    learn,folder = made(task)
    codec,own = load_published(folder).codec, learn.codec
    @settings(max_examples=40)
    @given(t=st.text(st.characters(codec='utf-8'), max_size=40) | st.sampled_from(odd_texts(60, 20)))
    def check(t):
        t, = marked(learn, [t])
        a,b = codec.encode(t)[0], own.encode(t)[0]
        assert a.equal(b) and codec.decode(a) == own.decode(b)
    check()

# The same answers

def same_logits(learn, predictor, texts):
    assert predictor.codec.encode(texts)[-1].equal(learn.codec.encode(texts)[-1])
    a,b = predictor.logits(texts), learn.outputs(learn.codec.encode(texts))
    assert (a-b).abs().max() <= 1e-5
    got,want = predictor.predict(texts, bs=8), [plain_value(o) for o in learn.predict(texts, bs=8)[0]]
    assert {*map(type, got)} <= {str,list,float}
    if predictor.labels['kind'] == 'regression': torch.testing.assert_close(torch.tensor(got), torch.tensor(want), atol=1e-5, rtol=0)
    else: assert got == want
    assert torch.allclose(predictor.probs(texts), torch.as_tensor(learn.predict(texts)[2]), atol=1e-6)

def plain_value(o):
    "A label as a predictor gives it"
    if isinstance(o, str): return o
    o = [*o] if not isinstance(o, (float,int)) and hasattr(o, '__len__') else o
    return o[0] if isinstance(o, list) and len(o) == 1 and isinstance(o[0], float) else o

@pytest.mark.parametrize('task', ['one','words','fast','many','numbers','columns','backwards'])
def test_classifier(made, task):
    "Logits, probabilities and labels of odd texts"
    learn,folder = made(task)
    same_logits(learn, load_published(folder), marked(learn, odd_texts(40)))

@pytest.mark.parametrize('members', [1,2])
def test_prices(tmp_path, members):
    "Numbers of any size come along: published, in eight bits, as ONNX, to train on, in a file of before"
    dls = TransformerDataLoaders.from_df(DF.assign(score=DF.score*1e6 + 3e6 + 0.5), **{**KW, 'label_col':'score', 'tok_tfm':BaseTokenizer()})
    learn = quiet(transformer_classifier_learner(dls, **SMALL, wide=1024, members=members))
    learn.fit(2, 1e-2)
    folder,texts = learn.publish(tmp_path/'prices'), odd_texts(20, 100)
    want = learn.outputs(learn.codec.encode(texts))
    assert 1e6 < want.min() and want.max() < 7e6 and learn.model.range.spread > 1e5
    def same(got, eps): assert (torch.as_tensor(got) - want).abs().max() < eps*learn.model.range.spread
    same(load_published(folder).logits(texts), 1e-4)
    same(load_published(folder, dtype='int8').logits(texts), 0.2)
    quiet(again := learner_from(folder, dls))
    same(again.outputs(again.codec.encode(texts)), 1e-4)
    again.export(tmp_path/'prices.pkl')
    same(load_learner(tmp_path/'prices.pkl').outputs(learn.codec.encode(texts)), 1e-4)
    e = learn.explain('a warm film')
    assert abs(e.gap) <= 0.02*abs(e.score-e.base)
    pytest.importorskip('onnxruntime')
    same(OnnxPredictor(to_onnx(folder, tmp_path/'onnx'), threads=1).logits(texts), 1e-4)

@pytest.mark.parametrize('preset', [p for p in PRESETS if p != 'default'])
def test_presets(made, preset):
    learn,folder = made('one', config=preset)
    same_logits(learn, load_published(folder), odd_texts(12, 600))

@pytest.mark.slow
@pytest.mark.parametrize('preset', PRESETS)
@pytest.mark.parametrize('task', ['one','words','many','numbers'])
def test_classifier_thousand(made, task, preset):
    "1,000 texts, one of them of 50,000 words"
    learn,folder = made(task, config=preset)
    same_logits(learn, load_published(folder), odd_texts(1000, 50_000))

def test_wide(tmp_path):
    "Counted words beside the transformer, and several members, come along"
    learn = quiet(transformer_classifier_learner(clf_dls('pieces', rules=[leading_space]), wide=1024, members=2, wide_words=True, **SMALL))
    learn.fit(1, 1e-3)
    assert learn.model.wide.counted
    p = load_published(learn.publish(tmp_path/'b'))
    same_logits(learn, p, odd_texts(12, 100))
    assert p.model.wide.table.equal(learn.model.wide.table.cpu()) and len(p.model.others) == 1
    again = learner_from(tmp_path/'b', learn.dls)
    assert again.predict('warm film')[2].allclose(learn.predict('warm film')[2], atol=1e-6)

@pytest.mark.parametrize('labels', [[1,3], [False,True]], ids=['numbers','booleans'])
def test_classes_that_are_no_strings(tmp_path, labels):
    "Learner and published model name a class as the data do"
    df = DF.assign(label=[labels[i%2] for i in range(60)])
    learn = stirred(clf(TransformerDataLoaders.from_df(df, **KW)))
    p = load_published(learn.publish(tmp_path/'b', trained=True))
    got = learn.predict(df)[0]
    assert got == p.predict(df) and {*got} <= {*df.label} and type(learn.predict('warm')[0]) is type(p.predict('warm')) is type(labels[0])

def test_given(made):
    "Texts as strings, rows, dictionaries, lists, series and frames"
    learn,folder = made('columns')
    p,two = load_published(folder), DF[['title','text']]
    want = p.predict(two)
    assert want == learn.predict(two)[0]
    assert want == p.predict(two.to_dict('records')) == p.predict([row for _,row in two.iterrows()])
    assert want[0] == p.predict(two.iloc[0]) == p.predict(dict(two.iloc[0])) == learn.predict(two.iloc[0])[0]
    assert p.predict(r for r in two.to_dict('records')) == want
    for bad,why in ((['a film'], 'does not say where'), ([], 'no text'), (3, 'is a int'), ([3], 'number 0 is 3'), ({'text':'a'}, "'title'"),
                    ({'title':None, 'text':'a'}, 'holds None')):
        with pytest.raises((ValueError,TypeError), match=why): p.predict(bad)
    one = load_published(made('one')[1])
    assert one.predict(DF.text) == one.predict(DF.text.tolist()) == one.predict(DF)
    assert one.predict(DF.rename(columns=dict(text='review')), text_col='review') == one.predict(DF)

@pytest.mark.parametrize('task', ['one','lm','mlm','pairs'])
def test_generator(made, task):
    "Texts that can be read only once, as with the learner"
    learn,folder = made(task)
    texts,kw = ['a ___ film','warm ___'] if task == 'mlm' else ['a film','warm'], dict(n_tokens=4, seed=1) if task in ('lm','pairs') else {}
    p = load_published(folder)
    want = p.predict(texts, **kw)
    assert p.predict((t for t in texts), **kw) == p.predict(iter(texts), **kw) == want
    if task == 'lm': assert learn.predict((t for t in texts), no_bar=True, **kw) == want
    if task == 'one':
        assert learn.predict(t for t in texts)[0] == want
        with PredictorPool(folder, 1) as pool: assert pool.predict(t for t in texts) == want

@pytest.mark.parametrize('task', ['one','lm','mlm','pairs'])
def test_half_signs(made, task):
    "A text with half an emoji is named, by the learner and by the published model"
    learn,folder = made(task)
    for o in (learn, load_published(folder)):
        for texts in (['a ___', '\ud83d ___'], pd.DataFrame(dict(text=['a ___', '\ud83d ___']))):
            col = dict(text_col='text') if task == 'pairs' and not isinstance(texts, list) else {}
            with pytest.raises(ValueError, match='(?s)(number 1|index 1).*half of a sign|half of a sign.*index 1'): o.predict(texts, **col)

def test_half_signs_in_vocabularies(tmp_path):
    "Tokens and labels with lone surrogates are published, and read as they were"
    dls = clf_dls(text_vocab=['xxunk','xxpad','xxbos','\ud83d','warm'], y_block=CategoryBlock(vocab=['neg','pos','\ude00']))
    learn = stirred(clf(dls))
    p = load_published(learn.publish(tmp_path/'b', trained=True))
    assert p.codec.vocab == learn.codec.vocab and p.labels['names'] == ['neg','pos','\ude00'] and '\ud83d' in p.codec.vocab
    same_logits(learn, p, odd_texts(12, 50))

@pytest.mark.parametrize('task', ['lm','lm_words'])
@pytest.mark.parametrize('preset', ['default','bloem'])
def test_language_model(made, task, preset):
    "Greedy, sampled and searched text, token for token; a stream is its pieces"
    learn,folder = made(task, config=preset)
    p = load_published(folder)
    for kw in (dict(temperature=0.), dict(seed=3, top_k=20), dict(seed=4, top_p=0.9, n_samples=2), dict(num_beams=2), dict(seed=1, n_words=4)):
        kw = {**dict(n_tokens=None if 'n_words' in kw else 12), **kw}
        for prompt in ('a warm film', ['', 'The music was 🙂']): assert p.predict(prompt, **kw) == learn.predict(prompt, no_bar=True, **kw)
    assert ''.join(p.stream('a film', n_tokens=10, seed=5)) == p.predict('a film', n_tokens=10, seed=5)[len('a film'):]

def test_backwards_language_model(made):
    "What writes from right to left goes on with no text, published or not"
    learn,folder = made('lm_backwards')
    predictor,onnx = load_published(folder),object.__new__(OnnxText)
    onnx.codec = predictor.codec
    for f in (learn.predict, predictor.predict, predictor.stream, onnx.predict, lambda t: [*onnx.stream(t)]):
        with pytest.raises(ValueError, match='backwards=True'): f('the film')

@pytest.mark.slow
def test_language_model_long(made):
    "256 tokens, greedy and under a seed, past the length that the model sees at once"
    learn,folder = made('lm', max_len=64)
    p = load_published(folder)
    for kw in (dict(temperature=0.), dict(seed=3)): assert p.predict('a film', n_tokens=256, **kw) == learn.predict('a film', n_tokens=256, no_bar=True, **kw)

def test_masked(made):
    learn,folder = made('mlm')
    p = load_published(folder)
    for text in ('the ___ was warm', 'a ___ and a ___ ', '___'):
        assert p.fill(text, n=3) == learn.fill(text, n=3).to_dict('records')
    assert len(p.fill(['a ___', '___ film'])) == 2
    with pytest.raises(ValueError, match='has no gap'): p.fill('a film')

def test_pairs(made):
    learn,folder = made('pairs')
    p,texts = load_published(folder), odd_texts(20, 30)
    for kw in ({}, dict(seed=1, top_k=5), dict(num_beams=2, n_tokens=9), dict(n_samples=2, seed=2), dict(stop=['a','e'])):
        kw = dict(n_tokens=12) | kw
        assert p.predict(texts, **kw) == learn.predict(texts, **kw)
    for kw in (dict(), dict(n_tokens=12, seed=5, top_k=9), dict(stop='a', seed=1, temperature=2.)):
        assert list(p.stream('a film', **kw)) == list(learn.stream_text('a film', **kw)) and ''.join(p.stream('a film', **kw)) == p.predict('a film', **kw)
    with pytest.raises(ValueError, match='num_beams=2'): p.stream('a film', num_beams=2)
    with pytest.raises(ValueError, match='leave out seed=3$'): p.predict('a film', num_beams=2, seed=3)
    assert p.encode('a film').allclose(learn.encode('a film').pooled, atol=1e-5)

def test_shares(made):
    "A word's share is the fall of the log-odds without it"
    p = load_published(made('one')[1])
    shares = p.shares('warm film a')
    z = p.logits(['warm film a', 'film a'])
    assert [w for w,_ in shares] == ['xxbos','warm','film','a']
    fall = dict(shares)['warm']
    i = int(z[0].argmax())
    assert abs(fall - float((z[0,i]-z[0,1-i]) - (z[1,i]-z[1,1-i]))) < 1e-4

@pytest.mark.parametrize('target', [-1, 2, 0.5])
def test_shares_of_no_output(made, target):
    p = load_published(made('one')[1])
    with pytest.raises(ValueError, match=f'target={target}: the outputs are numbered from 0 to 1'): p.shares('warm film a', target)

def test_threads(made):
    "Eight threads give the answers of one"
    texts = odd_texts(60, 200)
    p = load_published(made('fast')[1])
    want = [p.logits(t) for t in texts]
    with ThreadPoolExecutor(8) as ex: got = list(ex.map(p.logits, texts*3))
    assert all(a.equal(b) for a,b in zip(got, want*3))
    w = load_published(made('lm')[1])
    want = [w.predict('a film', n_tokens=8, seed=i) for i in range(8)]
    with ThreadPoolExecutor(8) as ex: assert want == list(ex.map(lambda i: w.predict('a film', n_tokens=8, seed=i), range(8)))
    assert not any(q.requires_grad for q in p.model.parameters()) and not p.model.training

def test_pool(made):
    "Eight threads and two processes give the answers of one"
    folder,texts = made('fast')[1], odd_texts(60, 200)
    p = load_published(folder)
    with PredictorPool(folder, 2) as pool, ThreadPoolExecutor(8) as ex:
        assert [*ex.map(pool.predict, texts*2)] == [p.predict(t) for t in texts]*2
        assert torch.allclose(pool.logits(texts), p.logits(texts), atol=1e-5) and torch.allclose(pool.probs(texts), p.probs(texts), atol=1e-5)
        assert torch.allclose(pool.encode('a film', None), p.encode('a film'), atol=1e-5)
        with pytest.raises(TypeError, match='bss'): pool.predict('a film', bss=3)
        with pytest.raises(AttributeError, match="'LabelPredictor' object has no attribute 'fill'"): pool.fill('a ___')
        assert pool.predict('a film') == p.predict('a film')              # an error ends nothing
    with pytest.raises(ValueError, match=r"PredictorPool\('.*', workers=2\) is closed: make a new one"): pool.predict('a film')

def test_pool_keeps_its_model(made, tmp_path, monkeypatch):
    "A folder that is published anew, or a process that goes elsewhere, changes no answer"
    shutil.copytree(made('one')[1], tmp_path/'m')
    monkeypatch.chdir(tmp_path)
    with PredictorPool('m', 2) as pool:
        want = pool.predict('a film')
        shutil.rmtree(tmp_path/'m')
        monkeypatch.chdir('/')
        with ThreadPoolExecutor(4) as ex: assert {*ex.map(pool.predict, ['a film']*20)} == {want}
        assert str(tmp_path/'m') in repr(pool)

def test_pool_of_other_tasks(made):
    lm,mlm = (load_published(made(k)[1]) for k in ('lm','mlm'))
    with PredictorPool(made('lm')[1], 1) as pool: assert pool.predict('a film', n_tokens=8, seed=1) == lm.predict('a film', n_tokens=8, seed=1)
    with PredictorPool(made('mlm')[1], 1) as pool: assert [o['token'] for o in pool.fill('a ___ film')] == [o['token'] for o in mlm.fill('a ___ film')]

def test_pool_refuses(made, tmp_path):
    "What is wrong with a folder or an argument is said when the pool is made"
    with pytest.raises(FileNotFoundError, match='there is no folder'): PredictorPool(tmp_path/'none', 2)
    with pytest.raises(ValueError, match="dtype='fp8'"): PredictorPool(made('one')[1], 1, dtype='fp8')
    for n in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f'workers={n}: a whole number'): PredictorPool(made('one')[1], n)

def test_pool_of_two_models(made, monkeypatch):
    "A model that is published anew while the processes read: some would answer from the old one"
    def _results(self, n, f, *args): return [(i, load_published(made(t)[1]).config['checksum']) for i,t in enumerate(('one','many'))]
    monkeypatch.setattr(PredictorPool, '_results', _results)
    with pytest.raises(ValueError, match='was published anew while the processes read it.*make the PredictorPool again'): PredictorPool(made('one')[1], 2)

def test_pool_whose_process_is_killed(made):
    with PredictorPool(made('one')[1], 1) as pool:
        for pid in pool._pool._processes: os.kill(pid, signal.SIGKILL)
        with pytest.raises(ChildProcessError, match='make a new one .*in a file, not from stdin'): pool.predict('a film')
    with PredictorPool(made('one')[1], 1) as pool: assert isinstance(pool.predict('a film'), str)

# Nothing is executed, everything is checked

def test_nothing_is_executed(made, monkeypatch):
    "Loading calls neither pickle nor eval nor exec, and no unsafe `torch.load` (spaCy evaluates type hints of its own when it starts)"
    folders = [made(t)[1] for t in ('one','many','lm','mlm','pairs')]
    for f in folders: load_published(f)                                  # what it imports is imported
    def _no(*args, **kwargs): raise AssertionError('something was executed')
    for o,k in ((pickle,'load'), (pickle,'loads'), (pickle,'Unpickler'), (torch,'load'), (builtins,'eval'), (builtins,'exec'), (builtins,'compile')):
        monkeypatch.setattr(o, k, _no)
    try: got = [type(load_published(f)).__name__ for f in folders]
    finally: monkeypatch.undo()
    assert got == ['LabelPredictor']*2 + ['WritingPredictor','GapPredictor','PairPredictor']

@pytest.mark.parametrize('name', ['config.json', *FILES])
def test_flipped(made, tmp_path, name):
    "A flipped bit anywhere, a lost end or an added byte is refused by the file's name"
    folder = shutil.copytree(made('one')[1], tmp_path/'b')
    whole = (folder/name).read_bytes()
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(i=st.integers(0, len(whole)-1), bit=st.integers(0, 7), how=st.sampled_from(['flip','cut','add']))
    def check(i, bit, how):
        new = whole[:i] + bytes([whole[i]^(1<<bit)]) + whole[i+1:]
        if how != 'flip': new = whole[:i] if how == 'cut' else whole[:i] + b' ' + whole[i:]
        (folder/name).write_bytes(new)
        with pytest.raises(ValueError, match=name): load_published(folder)
    check()
    (folder/name).unlink()
    with pytest.raises(FileNotFoundError, match=name): load_published(folder)

def rewritten(folder, change):
    "The bundle in `folder` with other content and right hashes: as somebody else might write it"
    config = json.loads((folder/'config.json').read_text())
    files = {k:(folder/k).read_bytes() for k in FILES}
    texts = {k:json.loads(files[k]) for k in ('text.json','labels.json')}
    tensors = change(config, texts)
    if tensors: files['model.safetensors'] = tensors
    files |= {k:json_text(v).encode() for k,v in texts.items()}
    for k in ('files','checksum'): config.pop(k, None)
    for k,v in {**files, 'config.json':seal(config, files)}.items(): (folder/k).write_bytes(v)
    return folder

def _drop(where, k): return lambda config, texts: (config if where == 'config' else config['config'] if where == 'field' else texts[where]).pop(k) and None

@pytest.mark.parametrize('where,k,task', [
    ('config','kind','one'), ('config','config','one'), ('config','versions','one'), ('config','options','one'), ('field','d_model','one'),
    ('field','n_heads','one'), ('labels.json','names','one'), ('labels.json','kind','one'), ('labels.json','threshold','many'), ('text.json','sides','one'),
    ('labels.json','mask_idx','mlm'), ('labels.json','special','mlm'), ('labels.json','ratio','pairs')])
def test_missing_fields(made, tmp_path, where, k, task):
    "A bundle with right hashes and a field missing names file and field"
    folder = rewritten(shutil.copytree(made(task)[1], tmp_path/'b'), _drop(where, k))
    with pytest.raises(ValueError, match=f'(?s)json.*{k!r}'): load_published(folder)

def _set(where, k, v):
    def change(config, texts):
        o = config if where == 'config' else config['config'] if where == 'field' else texts['text.json']['sides'][0] if where == 'side' else texts[where]
        o[k] = v
    return change

foreign = dict(
    width=(_set('field','d_model',32), 'model.safetensors.*tensor'), layers=(_set('field','n_layers',5), 'is missing'), unknown=(_set('field','d_modle',3), "'d_modle'"),
    typ=(_set('field','n_heads','4'), 'n_heads'), kind=(_set('config','kind','os.system'), 'os.system'), vocab=(_set('side','vocab',['xxunk','xxpad']), '2 tokens'),
    rule=(_set('side','rules',['eval']), "'eval'"), step=(_set('side','steps',['exec']), "'exec'"), tokenizer=(_set('side','tokenizer',dict(kind='pickle')), "'pickle'"),
    option=(_set('config','options',dict(block='x')), 'block|config.json'), huge=(_set('field','d_model',10**30), 'config.json'), labels=(_set('labels.json','names',['a']), "'names'"),
    padding=(_set('field','pad_idx',0), "text.json.*'xxpad' is token 1 .*padding is token 0"))

@pytest.mark.parametrize('change,why', foreign.values(), ids=foreign)
def test_foreign(made, tmp_path, change, why):
    "A bundle with right hashes that describes another model, or code, is refused by name"
    folder = rewritten(shutil.copytree(made('one')[1], tmp_path/'b'), change)
    with pytest.raises(ValueError, match=f'(?s){why}'): load_published(folder)

def test_numbers_without_names(made, tmp_path):
    "A regression has no names of labels: a file that leaves them out is read, and answered from"
    folder = shutil.copytree(made('numbers')[1], tmp_path/'b')
    want = load_published(folder).predict('a film')
    assert load_published(rewritten(folder, _drop('labels.json','names'))).predict('a film') == want

def test_other_padding(tmp_path):
    "A learner whose model takes another token for padding is refused before anything is written: `load_published` would not read it"
    learn = clf(clf_dls())
    learn.model.config = dataclasses.replace(learn.model.config, pad_idx=0)
    with pytest.raises(ValueError, match="'xxpad' is token 1 .*padding is token 0: leave out pad_idx="): learn.publish(tmp_path/'b', trained=True)
    assert not list(tmp_path.iterdir())

def test_path_outside(made, tmp_path):
    "A file that is named by a path is refused by that name, and not looked for"
    for name in ('../secret','/etc/passwd','a/../../b','..\\x'):
        folder = shutil.copytree(made('one')[1], tmp_path/'b', dirs_exist_ok=True)
        config = json.loads((folder/'config.json').read_text())
        config['files'][name] = hashlib.sha256(b'').hexdigest()
        config.pop('checksum')
        config['checksum'] = hashlib.sha256(json_text(config).encode()).hexdigest()
        (folder/'config.json').write_text(json_text(config))
        with pytest.raises(ValueError, match='(?s)config.json.*' + name.replace('\\', '.{1,4}').replace('..', r'\.\.')): load_published(folder)

def test_other_tensors(made, tmp_path):
    "A tensor of another shape or type, one too many, one too few, and no safetensors at all"
    from safetensors.torch import load, save
    whole = load((made('one')[1]/'model.safetensors').read_bytes())
    k = next(iter(whole))
    wrong = dict(shape={**whole, k:whole[k][:-1].clone()}, typ={**whole, k:whole[k].half()}, more={**whole, 'x':whole[k].clone()},
                 less={n:t for n,t in whole.items() if n != k})
    for t in [save(o) for o in wrong.values()] + [pickle.dumps([1]), b'', b'\xff'*99]:
        folder = rewritten(shutil.copytree(made('one')[1], tmp_path/'b', dirs_exist_ok=True), lambda config, texts: t or b' ')
        with pytest.raises(ValueError, match='model.safetensors'): load_published(folder)
    for o,why in ((wrong['more'], "has no tensor 'x'"), (wrong['less'], f"tensor '{k}' is missing")):
        rewritten(folder, lambda config, texts: save(o))
        with pytest.raises(ValueError, match=rf'{why} \(if another version of fastai_txf wrote it, load it with that one\)'): load_published(folder)

def test_nested(made, tmp_path):
    "JSON that nests too deep is an error, not a crash"
    folder = shutil.copytree(made('one')[1], tmp_path/'b')
    for data in (b'['*100_000, b'{"a":'*100_000, b'', b'null', b'\xff', b'{}'):
        (folder/'config.json').write_bytes(data)
        with pytest.raises(ValueError, match='config.json'): load_published(folder)

def test_own_card(made, tmp_path):
    folder = shutil.copytree(made('one')[1], tmp_path/'b')
    (folder/'README.md').write_text('# mine')
    with pytest.raises(ValueError, match='own_card=True'): load_published(folder)
    assert load_published(folder, own_card=True).predict('warm')

# What is refused, before anything is written

class OwnTokenizer(BaseTokenizer): pass
class OwnModel(TransformerClassifier): pass
class OwnBlock(TransformerBlock): pass
def own_rule(t): return t

refused = dict(
    tokenizer=lambda: clf(TransformerDataLoaders.from_df(DF, tok_tfm=OwnTokenizer(), **KW)), function=lambda: clf(TransformerDataLoaders.from_df(DF, tok_tfm=lambda ts: (t.split() for t in ts), **KW)),
    rule=lambda: clf(clf_dls(rules=[own_rule])), arch=lambda: clf(clf_dls(), arch=OwnModel), block=lambda: clf(clf_dls(), block=OwnBlock),
    cautious=lambda: clf(clf_dls(), loss_func=Cautious()), rounding=lambda: clf(clf_dls(label_col='score'), loss_func=Rounding()),
    options=lambda: clf(clf_dls(), block=partial(TransformerBlock, d_ff=17)), loss=lambda: clf(clf_dls(), loss_func=OwnLoss()))
words = dict(tokenizer='OwnTokenizer', function='<lambda>', rule='own_rule', arch='OwnModel', block='OwnBlock', options='(17|shape|says)', loss='makes other probabilities',
             cautious='CrossEntropy.*decodes', rounding='MSELoss.*decodes')

class OwnLoss(CrossEntropyLossFlat):
    def activation(self, x): return x.sigmoid()

class Cautious(CrossEntropyLossFlat):
    def decodes(self, x): return (x[:,1] > 0.99).long()

class Rounding(BaseLoss):
    def __init__(self): super().__init__(torch.nn.MSELoss, is_2d=False, floatify=True)
    def decodes(self, x): return x.round()

@pytest.mark.parametrize('part', refused)
def test_refused(tmp_path, part):
    "What only code can describe is named, and nothing is written"
    with pytest.raises((ValueError,TypeError), match=words[part]): refused[part]().publish(tmp_path/'b', trained=True)
    assert not list(tmp_path.iterdir())

def own_labels(pred, targ): return torch.nn.functional.binary_cross_entropy_with_logits(pred, targ.float())
def own_numbers(pred, targ): return torch.nn.functional.mse_loss(pred.view(-1), targ.view(-1))

@pytest.mark.parametrize('task,loss', [('one',FocalLoss()), ('many',own_labels), ('numbers',own_numbers)], ids=['one','many','numbers'])
def test_loss_without_activation(tmp_path, task, loss):
    "A loss that says nothing of probabilities and labels: a published model answers as the learner does"
    learn = stirred(tasks[task](loss_func=loss))
    same_logits(learn, load_published(learn.publish(tmp_path/'b', trained=True)), list(DF.text))

class Shift(torch.nn.Module):
    "A feed-forward that looks at the token before"
    def __init__(self, d_model, *args, **kwargs):
        super().__init__()
        self.out = torch.nn.Linear(d_model, d_model)
    def forward(self, x): return self.out(x.roll(1, 1))

own_parts = dict(positions=(POSITIONS, lambda d_model, n_heads, d_head, max_len, base=1.: RotaryPositions(d_head, base=500.)), ff=(FEED_FORWARDS, Shift), norm=(NORMS, partial(torch.nn.RMSNorm, elementwise_affine=False)))

@pytest.mark.parametrize('field', own_parts)
@pytest.mark.parametrize('name', ['mine','old'])
def test_own_entries(tmp_path, monkeypatch, field, name):
    "A part of somebody's own in a table of the library, under a new name or an old one, is refused by name, as ONNX and on the way to transformers, too"
    table,part = own_parts[field]
    if name == 'old': name = dict(positions='rotary', ff='swiglu', norm='rms')[field]
    monkeypatch.setitem(table, name, part)
    learn = stirred(clf(clf_dls(), **{field:name}))
    own = partial(pytest.raises, ValueError, match=f"{field}='{name}' is a part of your own in the library's table")
    with own(): learn.publish(tmp_path/'b', trained=True)
    if name != 'mine':
        with own(): to_hf(TransformerLM('llama', vocab_sz=30, d_model=16, n_heads=2))
    pytest.importorskip('onnxscript')
    with own(): to_onnx(learn, tmp_path/'b', trained=True)
    assert not list(tmp_path.iterdir())

def test_untrained(tmp_path):
    with pytest.raises(ValueError, match='recorded no epoch'): tasks['one']().publish(tmp_path/'b')
    learn = quiet(tasks['one']())
    learn.lr_find(num_it=20, show_plot=False)                               # puts the weights back
    with pytest.raises(ValueError, match='recorded no epoch'): learn.publish(tmp_path/'b')
    with torch.no_grad(): learn.model.head.bias[0] = float('nan')
    with pytest.raises(ValueError, match='head.bias.*diverged'): learn.publish(tmp_path/'b', trained=True)
    assert not list(tmp_path.iterdir())

def test_existing(made, tmp_path):
    "A folder that exists is kept, unless it is a published model and may be replaced"
    learn,_ = made('one')
    (tmp_path/'mine').mkdir()
    (tmp_path/'mine'/'thesis.txt').write_text('all my work')
    for kw in ({}, dict(replace=True)):
        with pytest.raises(FileExistsError, match='mine'): learn.publish(tmp_path/'mine', trained=True, **kw)
    assert (tmp_path/'mine'/'thesis.txt').read_text() == 'all my work'
    learn.publish(tmp_path/'b', trained=True)
    with pytest.raises(FileExistsError, match='replace=True'): learn.publish(tmp_path/'b', trained=True)
    made('many')[0].publish(tmp_path/'b', replace=True, trained=True)
    assert load_published(tmp_path/'b').labels['kind'] == 'multi'
    assert sorted(o.name for o in tmp_path.iterdir()) == ['b','mine']

@pytest.mark.parametrize('own', ['thesis.txt','.git/HEAD','README.md/x'])
def test_own_files(made, tmp_path, own):
    "A published model with a file or folder of somebody's own is not replaced, and what it is gets named"
    learn,folder = made('one')
    folder = shutil.copytree(folder, tmp_path/'b')
    if own.startswith('README'): (folder/'README.md').unlink()
    (folder/own).parent.mkdir(exist_ok=True)
    (folder/own).write_text('mine')
    with pytest.raises(FileExistsError, match=f"b holds '{own.partition('/')[0]}' beside.*move this elsewhere"): learn.publish(folder, replace=True, trained=True)
    assert (folder/own).read_text() == 'mine'

def test_two_dots_behind_a_link(made, tmp_path):
    "`..` behind a link is what it is for the system: no other model is replaced, or opened"
    (one,_),(many,_) = made('one'), made('many')
    (tmp_path/'disk'/'sub').mkdir(parents=True)
    (tmp_path/'work').mkdir()
    (tmp_path/'work'/'link').symlink_to(tmp_path/'disk'/'sub')
    way = tmp_path/'work'/'link'/'..'/'m'
    one.publish(tmp_path/'work'/'m', trained=True)
    assert load_published(many.publish(way, trained=True)).labels['kind'] == load_published(tmp_path/'disk'/'m').labels['kind'] == 'multi'
    with PredictorPool(way, 1) as pool: assert pool.predict('a film') == load_published(way).predict('a film')
    many.publish(way, replace=True, trained=True)
    assert load_published(tmp_path/'work'/'m').labels['kind'] == 'category'
    assert load_published(many.publish(tmp_path/'none'/'..'/'n', trained=True)).labels['kind'] == 'multi'
    with pytest.raises(FileExistsError, match='disk is no published model'): many.publish(tmp_path/'work'/'link'/'..', replace=True, trained=True)
    with pytest.raises(FileExistsError, match='link is no published model'): many.publish(tmp_path/'work'/'link', replace=True, trained=True)

def test_foreign_model_is_kept(made, tmp_path):
    "A model of another library has config.json and model.safetensors, too, and is not replaced"
    for config in ('{"model_type": "gpt2"}', '{"kind": ["lm"]}', '[]', '', '['*100_000):
        (tmp_path/'gpt').mkdir(exist_ok=True)
        for name,text in {'config.json':config, 'model.safetensors':'weights'}.items(): (tmp_path/'gpt'/name).write_text(text)
        with pytest.raises(FileExistsError, match='gpt is no published model'): made('one')[0].publish(tmp_path/'gpt', replace=True, trained=True)
        assert (tmp_path/'gpt'/'model.safetensors').read_text() == 'weights'

def test_full_disk(made, tmp_path):
    "Where there is no space left, the old bundle stays whole and nothing lies beside it"
    learn,old = made('one')[0], made('many')[0].publish(tmp_path/'b', trained=True)
    files = bundle_files(learn)
    for limit in (0, 100, len(files['model.safetensors'])-1):
        pid = os.fork()
        if pid == 0:
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                write_folder(old, files, replace=True)
            except OSError as e: os._exit(3 if str(old) in str(e) else 4)
            finally: os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert load_published(old).labels['kind'] == 'multi' and [o.name for o in tmp_path.iterdir()] == ['b']

def test_killed(made, tmp_path):
    "A kill at any moment leaves a bundle that is whole: the old one or the new one"
    files = [bundle_files(made(t)[0]) for t in ('one','many')]
    write_folder(tmp_path/'b', files[0])
    for i in range(12):
        pid = os.fork()
        if pid == 0:
            try:
                for j in range(10_000): write_folder(tmp_path/'b', files[j%2], replace=True)
            finally: os._exit(0)
        time.sleep(0.01 + 0.007*i)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not (tmp_path/'b').exists(): # between the two renamings: the old one lies beside it, whole
            with pytest.raises(FileExistsError, match='replace=True'): write_folder(tmp_path/'b', files[0])
        assert load_published(tmp_path/'b').labels['kind'] in ('category','multi')

def test_after_a_kill(made, tmp_path, monkeypatch):
    "A kill between the two renamings: the old model comes back, and what kills have left goes when it is an hour old"
    learn,files = made('one')[0], bundle_files(made('many')[0])
    write_folder(tmp_path/'b', files)
    pid = os.fork()
    if pid == 0:
        rename = os.rename
        os.rename = lambda a, b: (rename(a, b), os.kill(os.getpid(), signal.SIGKILL))
        write_folder(tmp_path/'b', files, replace=True)
    os.waitpid(pid, 0)
    assert not (tmp_path/'b').exists()
    for name in ('.b.12345678.tmp','.b.12345678.old','.b.c.12345678.tmp','.b.mine.tmp'): (tmp_path/name).mkdir()
    (tmp_path/'.b.12345679.tmp').mkdir()
    (tmp_path/'.b.12345679.tmp'/'thesis.txt').write_text('mine')
    with pytest.raises(FileExistsError, match='replace=True'): learn.publish(tmp_path/'b', trained=True)
    assert load_published(tmp_path/'b').labels['kind'] == 'multi' and len(list(tmp_path.glob('.b.*'))) == 6
    for o in tmp_path.glob('.b.*'): os.utime(o, (0,0))
    learn.publish(tmp_path/'b', trained=True, replace=True)
    assert load_published(tmp_path/'b').labels['kind'] == 'category'
    assert sorted(o.name for o in tmp_path.glob('.*')) == ['.b.12345679.tmp','.b.c.12345678.tmp','.b.mine.tmp']

def test_two_writers(made, tmp_path, monkeypatch):
    "Another process that puts its folder there between the two renamings: the second try replaces it, a third of them is an error that says so; nothing is left"
    files,other = bundle_files(made('one')[0]), bundle_files(made('many')[0])
    rename,told,at = os.rename, [], tmp_path/'b'
    def _quicker(a, b):
        if str(b).endswith('.old') and told:
            rename(a, b)
            (tmp_path/'theirs').mkdir()
            for k,v in other.items(): (tmp_path/'theirs'/k).write_bytes(v)
            return rename(tmp_path/'theirs', told.pop())
        return rename(a, b)
    monkeypatch.setattr(os, 'rename', _quicker)
    write_folder(at, other)
    told.append(at)
    write_folder(at, files, replace=True)
    assert load_published(at).labels['kind'] == 'category' and [o.name for o in tmp_path.iterdir()] == ['b']
    told += [at, at]
    with pytest.raises(OSError, match='cannot write .*b: another process is writing there: let one'): write_folder(at, files, replace=True)
    assert load_published(at).labels['kind'] == 'multi' and [o.name for o in tmp_path.iterdir()] == ['b']

def test_renames_of_windows(made, tmp_path, monkeypatch):
    "Where no folder can be renamed onto an empty one a model is replaced, too, and is whole after an error"
    files,other = bundle_files(made('one')[0]), bundle_files(made('many')[0])
    rename,at,full = os.rename, tmp_path/'b', []
    def _strict(a, b):
        if os.path.lexists(b): raise FileExistsError(errno.EEXIST, 'there is one already', str(b))
        if full and str(a).endswith('.tmp'): raise OSError(errno.ENOSPC, 'full')
        return rename(a, b)
    monkeypatch.setattr(os, 'rename', _strict)
    write_folder(at, other)
    assert load_published(write_folder(at, files, replace=True)).labels['kind'] == 'category'
    full.append(True)
    with pytest.raises(OSError, match='cannot write .*b: full'): write_folder(at, other, replace=True)
    assert load_published(at).labels['kind'] == 'category' and [o.name for o in tmp_path.iterdir()] == ['b']

def test_lost_place(made, tmp_path, monkeypatch):
    "Where another process has taken the old folder away nothing is left beside; without `replace` another's new folder stays"
    files,rename,at = bundle_files(made('one')[0]), os.rename, tmp_path/'b'
    write_folder(at, files)
    def _gone(a, b):
        if str(b).endswith('.old'): shutil.rmtree(at)
        return rename(a, b)
    monkeypatch.setattr(os, 'rename', _gone)
    write_folder(at, files, replace=True)
    assert load_published(at) and [o.name for o in tmp_path.iterdir()] == ['b']
    shutil.rmtree(at)
    def _there(a, b):
        if b == at: shutil.copytree(a, at)
        return rename(a, b)
    monkeypatch.setattr(os, 'rename', _there)
    with pytest.raises(FileExistsError, match='replace=True'): write_folder(at, files)
    assert load_published(at) and [o.name for o in tmp_path.iterdir()] == ['b']

def test_read_while_replaced(made, tmp_path, monkeypatch):
    "A folder that is missing for a moment, or has the files of two models, is read once more"
    folder,other = (shutil.copytree(made(t)[1], tmp_path/t) for t in ('one','many'))
    want = load_published(folder).labels
    for hidden in (folder, folder/'labels.json'):
        hidden.rename(tmp_path/'hidden')
        if hidden != folder: shutil.copy(other/'labels.json', hidden)
        def _back(seconds):
            if hidden.is_file(): hidden.unlink()
            (tmp_path/'hidden').rename(hidden)
        monkeypatch.setattr(time, 'sleep', _back)
        assert load_published(folder).labels == want

# The card, and training on

def test_card(tmp_path):
    "It says what was measured"
    learn = quiet(clf(clf_dls(), metrics=[]))
    learn.fit(2, 1e-3)
    table = baseline(learn.dls)
    text = (learn.publish(tmp_path/'b', baseline=table)/'README.md').read_text()
    loss = learn.recorder.values[-1][1]
    for part in ('| training | 48 |', '| validation | 12 |', f'{loss:.4f}', 'After 2 epochs', '`neg`, `pos`', 'load_published', 'd_model', torch.__version__, f'{table.accuracy[1]:.4f}'):
        assert part in text, part

@pytest.mark.parametrize('task', ['one','columns','lm','mlm','pairs','lm_columns','lm_backwards','mlm_columns'])
def test_lines_of_the_card(made, task, capsys):
    "They run, whatever the texts are"
    folder = made(task)[1]
    code = (folder/'README.md').read_text().split('```')[1].removeprefix('python\n')
    exec(code.replace("'this folder'", repr(str(folder))), {})
    assert '{' in code.split('load_published(')[1] or 'columns' not in task

@pytest.mark.parametrize('task,said', [('one','its label'), ('many','its labels'), ('numbers','its number')])
def test_what_the_card_says_of_an_answer(made, task, said): assert f'# {said}\n' in (made(task)[1]/'README.md').read_text()

def test_columns_of_one_name(tmp_path):
    "Refused by the learner and by what it published, where it matters"
    learn = quiet(clf(clf_dls()))
    name = learn.codec.text_cols[0]
    frame = pd.DataFrame([['a warm film','dull acting',1,2]], columns=[name,name,'n','n'])
    model = load_published(learn.publish(tmp_path/'a', trained=True))
    for f in (learn.predict, model.predict):
        with pytest.raises(ValueError, match=f"2 columns are called '{name}'"): f(frame)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        one = frame.iloc[:,1:]
        assert model.predict(one) == [model.predict('dull acting')]

def test_row_without_the_column_of_the_text(tmp_path):
    "A row of a frame whose text is called otherwise was read as several texts; files from before the names were kept are read"
    df = DF.rename(columns=dict(text='review'))
    learn = quiet(clf(clf_dls()))
    model = load_published(learn.publish(tmp_path/'a', trained=True))
    row = df[['review','label']].iloc[0]
    for f in (learn.predict, model.predict):
        with pytest.raises(ValueError, match="no column 'text'.*rename the one with the text, or name it, text_col="): f(row)
    assert model.predict(row, text_col='review') == model.predict(row.review)
    assert len(model.predict(pd.Series([row.review]*2, index=['a','b']))) == 2
    def older(config, texts): assert 'label' in texts['text.json']['sides'][0].pop('other_cols')
    assert load_published(rewritten(tmp_path/'a', older)).predict(row.review) == model.predict(row.review)

def test_another_column_called_text(tmp_path):
    "What the learner does not read from a column that is called `text`, a published model does not"
    learn = quiet(clf(TransformerDataLoaders.from_df(DF.rename(columns=dict(text='review')), **{**KW, 'text_col':'review', 'tok_tfm':BaseTokenizer()})))
    model,row = load_published(learn.publish(tmp_path/'a', trained=True)),dict(text='a warm film')
    for item in (row, pd.Series(row), pd.DataFrame([row]), [row], [dict(review='dull'),row], [pd.Series(row)]):
        for f in (learn.predict, model.predict):
            with pytest.raises(ValueError, match="'review'"): f(item)
    assert model.predict(row, text_col='text') == model.predict(row['text'])

@pytest.mark.parametrize('look', ['validate','get_preds','show_results','predict','lr_find','fit'])
def test_card_after_a_look(tmp_path, look):
    "What is done with a learner after its training is not what its training has measured"
    learn = quiet(clf(clf_dls(), metrics=[accuracy,BalancedAccuracy()]))
    learn.fit(2, 1e-3)
    row = [*learn.recorder.values[-1]]
    before = (learn.publish(tmp_path/'a')/'README.md').read_text()
    if look == 'fit':
        learn.validate()
        learn.create_opt = lambda: 1/0
        with pytest.raises(ZeroDivisionError): learn.fit(1, 1e-3, reset_opt=True)
    elif look == 'lr_find': learn.lr_find(num_it=20, show_plot=False)
    else: getattr(learn, look)(*['a warm film']*(look == 'predict'))
    assert (learn.publish(tmp_path/'b')/'README.md').read_text() == before
    assert 'After 2 epochs' in before
    for name,v in zip(('train_loss','valid_loss','accuracy','balanced_accuracy_score'), row): assert f'| {name} | {v:.4f} |' in before

def test_card_of_odd_labels(tmp_path):
    "A label stays one line of code, whatever it holds"
    names = ['a\n# Head','**b** `c`','d']
    df = DF.assign(label=[names[i%3] for i in range(60)])
    learn = stirred(clf(TransformerDataLoaders.from_df(df, **KW)))
    text = (learn.publish(tmp_path/'b', trained=True)/'README.md').read_text()
    assert 'Labels: `` **b** `c` ``, `a\\n# Head`, `d`.\n' in text and '\n# Head' not in text
    assert load_published(tmp_path/'b').labels['names'] == sorted(names)

def test_card_without_validation(tmp_path):
    "Where there are no texts to validate on, the card has the loss of training alone"
    learn = quiet(lm(LMDataLoaders.from_texts(list(DF.text), tok_tfm=CharTokenizer(), bs=2, seq_len=16), metrics=accuracy))
    learn.fit(1, 1e-3)
    text = (learn.publish(tmp_path/'b')/'README.md').read_text()
    assert f'| train_loss | {learn.recorder.values[-1][0]:.4f} |' in text and 'valid_loss' not in text and 'None' not in text
    assert 'After 1 epoch of the last training:' in text

@pytest.mark.parametrize('task', ['one','many','numbers','lm','mlm','pairs'])
def test_learner_from(made, task):
    "A learner with the published weights, that trains on"
    learn,folder = made(task)
    again = quiet(learner_from(folder, learn.dls))
    assert all(a.equal(b) for a,b in zip(again.model.state_dict().values(), learn.model.state_dict().values()))
    before = again.model.state_dict()['encoder.emb.weight'].clone()
    again.fit(1, 1e-3)
    assert not again.model.state_dict()['encoder.emb.weight'].equal(before)

def test_learner_from_threshold(tmp_path):
    "The threshold comes along, and other learners with the same loaders keep theirs"
    learn = stirred(tasks['many'](loss_func=BCEWithLogitsLossFlat(thresh=0.9)))
    folder = learn.publish(tmp_path/'b', trained=True)
    dls = clf_dls('characters', label_col='tags', label_delim=';')
    own,again = clf(dls), quiet(learner_from(folder, dls))
    assert again.predict(list(DF.text))[0] == load_published(folder).predict(list(DF.text)) == learn.predict(list(DF.text))[0]
    assert own.loss_func.thresh == 0.5
    assert learner_from(folder, dls, loss_func=BCEWithLogitsLossFlat(thresh=0.2)).loss_func.thresh == 0.2

def test_learner_from_before_the_spread(tmp_path):
    "A regression that has no mean and spread of its targets: 0 and 1, as `load` takes them"
    old,dls = stirred(clf(clf_dls(label_col='score'))), clf_dls(label_col='score')
    old.model.range = torch.nn.Identity()
    folder = old.publish(tmp_path/'b', trained=True)
    learn = quiet(learner_from(folder, dls))
    assert (learn.model.range.mean, learn.model.range.spread) == (0, 1)
    assert torch.allclose(learn.predict(list(DF.text))[2], load_published(folder).probs(list(DF.text)), atol=1e-5)

def test_learner_from_other_parts(tmp_path):
    "The longest translation and the mask token come along"
    learn,dls = stirred(s2s(pairs())), pairs()
    learn.ratio = 7.
    assert learner_from(learn.publish(tmp_path/'s', trained=True), dls).ratio == 7.
    hide = stirred(mlm(clf_dls(), mask_tok='film'))
    again = learner_from(hide.publish(tmp_path/'m', trained=True), clf_dls()).mask_tokens
    assert again.mask_idx == hide.mask_tokens.mask_idx and again.ordinary.equal(hide.mask_tokens.ordinary)

@pytest.mark.parametrize('task', ['one','lm','pairs'])
@pytest.mark.parametrize('max_len', [1, 3])
def test_few_positions(tmp_path, task, max_len):
    "A model with fewer learned positions than the probe has tokens"
    learn = stirred(tasks[task](positions='learned', max_len=max_len))
    assert load_published(learn.publish(tmp_path/'b', trained=True)).model.config.max_len == max_len

def test_learner_from_others(made):
    "Loaders that number or cut otherwise are refused"
    folder = made('one')[1]
    for dls,why in ((clf_dls('characters'), 'vocab'), (clf_dls(label_col='tags', label_delim=';'), 'labels'), (clf_dls(rules=[lowercase]), 'vocab|rules')):
        with pytest.raises(ValueError, match=why): learner_from(folder, dls)

@pytest.mark.parametrize('options', [dict(n_heads=1), dict(positions='alibi'), dict(eps=0.5), dict(pos_base=2.), dict(causal=True), dict(ff='relu'), dict(d_model=8),
                                     dict(n_out=3), dict(config='bert'), dict(y_range=(0,1))], ids=lambda o: [*o][0])
def test_learner_from_other_options(made, options):
    "What would answer otherwise with these weights is refused by name"
    learn,folder = made('one')
    with pytest.raises(ValueError, match=[*options][0]): learner_from(folder, learn.dls, **options)

def test_learner_from_options(made, tmp_path):
    "Dropout may be another, how much is read at once warns, and positions that are not there are named"
    learn,folder = made('one')
    assert learner_from(folder, learn.dls, drop_mult=0.).predict('warm')[2].equal(learn.predict('warm')[2])
    with pytest.warns(UserWarning, match='trained with max_len='): learner_from(folder, learn.dls, max_len=7)
    fixed = stirred(clf(clf_dls(), positions='learned', max_len=9))
    with pytest.warns(UserWarning), pytest.raises(ValueError, match='positions.emb.weight.*max_len='): learner_from(fixed.publish(tmp_path/'f', trained=True), fixed.dls, max_len=7)

def test_learner_from_other_columns(made):
    "Columns in another order say other things"
    learn,folder = made('columns')
    assert learner_from(folder, learn.dls)
    with pytest.raises(ValueError, match=r"\['text', 'title'\].*\['title', 'text'\]"): learner_from(folder, clf_dls(text_col=['text','title'], text_vocab=learn.codec.vocab))

# Without fastai, pandas and the like

BLOCKED = '''
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked!r}: raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Block())
'''
HEAVY = ['fastai','fastcore','fasttransform','plum','pandas','spacy','numpy','scipy','sklearn','matplotlib']

ANSWER = '''
import json, sys, warnings
warnings.simplefilter('ignore')
from fastai_txf.share.bundle import load_published
res = {}
for task,folder in json.loads(sys.argv[1]).items():
    p = load_published(folder)
    kind = p.config['kind']
    if kind == 'classifier': res[task] = p.logits(json.loads(sys.argv[2])).tolist()
    if kind == 'lm': res[task] = [p.predict('a film', n_tokens=9, temperature=0.), ''.join(p.stream('a film', n_tokens=9, seed=1)), p.predict('a', n_words=3, seed=2)]
    if kind == 'mlm': res[task] = p.fill('a ___ film')
    if kind == 'seq2seq': res[task] = p.predict(['a film','warm'], n_tokens=9)
print(json.dumps(res))
'''

def check_elsewhere(made, python, code, env, plain_tasks):
    "The answers of another process are those of this one"
    folders,texts = {t:str(made(t)[1]) for t in plain_tasks}, odd_texts(12, 50)
    out = subprocess.run([python, '-c', code, json.dumps(folders), json.dumps(texts)], env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-3000:]
    got = json.loads(out.stdout)
    for t in plain_tasks:
        p = load_published(made(t)[1])
        if t in ('one','many','numbers'): assert (torch.tensor(got[t]) - p.logits(texts)).abs().max() <= 1e-5
        elif t == 'lm': assert got[t] == [p.predict('a film', n_tokens=9, temperature=0.), ''.join(p.stream('a film', n_tokens=9, seed=1)), p.predict('a', n_words=3, seed=2)]
        elif t == 'mlm': assert [o['text'] for o in got[t]] == [o['text'] for o in p.fill('a ___ film')]
        else: assert got[t] == p.predict(['a film','warm'], n_tokens=9)

PLAIN = ['one','many','numbers','lm','mlm','pairs']

def test_without_fastai(made):
    "A process in which fastai, fastcore, pandas, spaCy and numpy cannot be imported answers the same"
    env = {**os.environ, 'PYTHONPATH':str(root)}
    check_elsewhere(made, sys.executable, BLOCKED.format(blocked=HEAVY) + ANSWER, env, PLAIN)

@pytest.mark.slow
def test_bare_environment(made, tmp_path):
    "An environment of torch, safetensors and tokenizers alone, with this package installed without dependencies"
    steps = [[sys.executable, '-m', 'venv', tmp_path/'env'],
             [tmp_path/'env/bin/pip', 'install', '-q', '-c', root/'constraints.txt', 'torch', 'safetensors', 'tokenizers'],
             [tmp_path/'env/bin/pip', 'install', '-q', '--no-deps', root]]
    for cmd in steps:
        out = subprocess.run(list(map(str, cmd)), capture_output=True, text=True)
        if out.returncode: pytest.skip(f'no bare environment can be made here: {out.stderr[-300:]}')
    python = str(tmp_path/'env/bin/python')
    have = subprocess.run([python, '-m', 'pip', 'list'], capture_output=True, text=True).stdout
    assert not any(f'\n{o} ' in have for o in HEAVY)
    env = {k:v for k,v in os.environ.items() if k != 'PYTHONPATH'}
    check_elsewhere(made, python, ANSWER, env, PLAIN)

def test_collections(made, tmp_path):
    "Loading leaves Python's search for garbage as it was, whatever comes of it"
    import gc
    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            load_published(made('one')[1])
            with pytest.raises(FileNotFoundError): load_published(tmp_path/'none')
            assert gc.isenabled() is on
        finally: gc.enable()
