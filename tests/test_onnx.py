"Models in ONNX: torch's answers without torch, files that are checked; maps with weights of eight bits"
import json, os, subprocess, sys, textwrap
import numpy as np, pytest, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from torch import nn
from fastai_txf.base.products import is_linear
from fastai_txf.all import (
    Int8Linear, load_published, OnnxPredictor, POSITIONS, Seq2SeqTransformer, to_int8, to_onnx, TransformerClassifier,
    TransformerLM, TransformerMLM)
from fastai_txf.model.config import LONG
from fastai_txf.model.windows import POOLS
from fastai_txf.share.sealed import seal
from fastai_txf.share.onnx import GRAPH_FILES, read_onnx
from fastai_txf.share.tables import cut_windows, feature_rows, lay_out
from test_publish import marked, odd_texts, stirred, tasks

root = Path(__file__).parents[1]

def ready():
    "Skip where the packages are missing"
    for name in ('onnx','onnxscript','onnxruntime'): pytest.importorskip(name)

def close(a, b): np.testing.assert_allclose(a, b, atol=1e-4*max(1, np.abs(b).max()), rtol=0)

@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "`made(task)`: a learner, its predictor, the same in ONNX and its folder, made once"
    ready()
    kept,base = {}, tmp_path_factory.mktemp('onnx')
    def _made(task, **kw):
        key = f'{task}{sorted(kw.items())}'
        if key not in kept:
            learn = stirred(tasks[task](**kw))
            folder = learn.publish(base/f'{len(kept)}', trained=True)
            at = to_onnx(folder, base/f'{len(kept)}_onnx')
            kept[key] = learn, load_published(folder), OnnxPredictor(at, threads=1), at
        return kept[key]
    return _made

slow = pytest.mark.slow

# Classifiers

@pytest.mark.parametrize('task,kw', [
    ('one', dict(max_len=8)), pytest.param('many', dict(max_len=50), marks=slow), pytest.param('numbers', {}, marks=slow),
    pytest.param('columns', {}, marks=slow), pytest.param('backwards', dict(pool='max_logits', max_len=9), marks=slow),
    pytest.param('fast', dict(config='reviews', max_len=8), marks=slow), ('words', dict(config='bert', max_len=60))])
def test_labels(made, task, kw):
    "Logits and labels of texts of all kinds and lengths, alone and in batches"
    learn,torchs,onnxs,_ = made(task, **kw)
    texts = marked(learn, odd_texts(60, long=300))
    close(onnxs.logits(texts), torchs.logits(texts).numpy())
    close(onnxs.logits(texts, bs=7), torchs.logits(texts).numpy())
    if task != 'numbers': assert onnxs.predict(texts) == torchs.predict(texts)
    for t in texts[:8]:
        close(onnxs.logits(t), torchs.logits(t).numpy())
        close(np.array(onnxs.probs(t)), torchs.probs(t).numpy())

def test_lengths_of_ids(made):
    "Ids of every length: none, one, up to windows and past them several times, padding inside"
    _,torchs,onnxs,_ = made('one', max_len=8)
    g,pad = torch.Generator().manual_seed(0), torchs.codec.pad_idx
    n = len(torchs.codec.vocab)
    ids = [torch.randint(0, n, (k,), generator=g) for k in (0, 1, 2, 7, 8, 9, 15, 16, 17, 100, 801)]
    want = torchs.outputs(ids).numpy()
    close(onnxs.outputs([o.tolist() for o in ids]), want)
    for o,w in zip(ids, want): close(onnxs.outputs([o.tolist()])[0], w)
    close(onnxs.outputs([[pad, 5, pad, 6, pad]]), torchs.outputs([torch.tensor([5, 6])]).numpy())

@pytest.mark.parametrize('bs', [0, -2, 2.5, None, True])
def test_bad_batches(made, bs):
    "No answer without a batch: rows that nobody has written are not handed out"
    *_,onnxs,_ = made('one', max_len=8)
    with pytest.raises(ValueError, match=f'bs={bs}.*1 or more'): onnxs.predict(['warm film', 'a'], bs=bs)
    assert onnxs.predict(['warm film', 'a'], bs=np.int64(1)) == onnxs.predict(['warm film', 'a'])

@pytest.mark.parametrize('odd', [-1, 10_000])
def test_ids_outside_the_vocabulary(made, odd):
    "A graph counts from the end below 0: the numbers are looked at before"
    *_,onnxs,_ = made('one', max_len=8)
    with pytest.raises(ValueError, match=f'token id {odd} is none of the'): onnxs.outputs([[5], [6,odd]])
    with pytest.raises(ValueError, match=f'token id {odd} is none of the'): made('lm', max_len=12)[2].scores([5,odd])
    *_,pairs,_ = made('pairs', max_len=16)
    for ids in ([[5,odd], [2]], [[5], [2,odd]]):
        with pytest.raises(ValueError, match=f'token id {odd} is none of the'): pairs.scores(*ids)

def test_threads(made):
    "Eight threads at once: the answers of one"
    _,_,onnxs,_ = made('one', max_len=8)
    texts = odd_texts(60, long=100)
    with ThreadPoolExecutor(8) as pool: assert [*pool.map(onnxs.predict, texts)] == [onnxs.predict(t) for t in texts]

# Models that write

prompts = 'warm', 'the film was', 'dull and cold '*20

@pytest.mark.parametrize('kw', [dict(max_len=12), dict(max_len=12, config='modern', n_kv_heads=1, bigrams=50), *(pytest.param(dict(max_len=12, positions=p, n_kv_heads=1), marks=slow) for p in ('learned','alibi','conv'))],
                         ids=lambda kw: kw.get('positions', kw.get('config', 'rotary')))
def test_text(made, kw):
    "Logits of prompts, and greedy texts that outgrow `max_len`, token for token"
    learn,torchs,onnxs,_ = made('lm', **kw)
    for p in prompts:
        ids = learn.codec.prompts([p])[0]
        if kw.get('positions') == 'learned': ids = ids[:12]
        with torch.no_grad(): want = torchs.model(ids[None])[0].numpy()
        close(onnxs.scores(ids.tolist()), want)
        assert onnxs.predict(p, n_tokens=30) == torchs.predict(p, n_tokens=30, temperature=0)
        assert p + ''.join(onnxs.stream(p, n_tokens=9)) == onnxs.predict(p, n_tokens=9)

def test_pairs(made, monkeypatch):
    "An encoder–decoder: logits, an empty source among them, and greedy texts"
    learn,torchs,onnxs,_ = made('pairs', max_len=16)
    tgt = torch.tensor([2, 9, 10, 11])
    for n in (0, 1, 5, 16, 40):
        src = torch.arange(n) % 20 + 9
        with torch.no_grad(): want = torchs.model(src[None], tgt[None])[0].numpy()
        close(onnxs.scores(src.tolist(), tgt.tolist()), want)
    texts = ['a warm film', '', 'cold story of the film '*3]
    assert onnxs.predict(texts, n_tokens=25) == torchs.predict(texts, n_tokens=25, temperature=0)
    assert onnxs.predict('a warm film') == torchs.predict('a warm film', temperature=0)
    with monkeypatch.context() as m:                                       # padding in a source is no token of it
        limits = []
        m.setattr(type(onnxs), '_greedy', lambda self, ids, n, *args: limits.append(n) or [])
        onnxs._write([onnxs.codec.pad_idx]*9 + [9, 10], None, True)
    assert limits == [int(max(2, onnxs.labels['ratio'])*2) + 20]

@pytest.mark.parametrize('positions', ['rotary', *(pytest.param(o, marks=slow) for o in ('learned','conv'))])
def test_pairs_of_tokens_in_windows_of_one(made, positions):
    "A token goes with the one before it in the text, though no keys of that are left"
    learn,torchs,onnxs,_ = made('lm', max_len=1, bigrams=200, positions=positions)
    for p in prompts: assert onnxs.predict(p, n_tokens=12) == torchs.predict(p, n_tokens=12, temperature=0)

@pytest.mark.parametrize('task,n', [pytest.param(t, n, marks=[slow]*((t,n) not in [('one',1), ('lm',1)])) for t in ('one','mlm','lm','pairs') for n in range(1, 7)])
def test_few_learned_positions(made, task, n):
    "Models of all kinds, also of fewer positions than the example that the export follows"
    learn,torchs,onnxs,_ = made(task, positions='learned', max_len=n)
    for p in prompts:
        if task in ('lm','pairs'): assert onnxs.predict(p, n_tokens=9) == torchs.predict(p, n_tokens=9, temperature=0)
        else:
            ids, = learn.codec.encode([p])
            with torch.no_grad(): close(onnxs.scores(ids.tolist()), torchs.model(ids[None])[0].numpy())

@slow
def test_gaps(made):
    "A masked language model: every token's logits, or those that are asked for"
    _,torchs,onnxs,_ = made('mlm', max_len=8)
    for n in (1, 8, 9, 30):
        ids = torch.arange(n) % 20 + 9
        with torch.no_grad(): want = torchs.model(ids[None])[0].numpy()
        close(onnxs.scores(ids.tolist()), want)
        close(onnxs.scores(ids.tolist(), [n-1, 0]), want[[n-1, 0]])

@pytest.mark.parametrize('mlm_head', [False,True])
def test_fill(made, mlm_head):
    "Gaps are filled with torch's guesses: one text and several, of all kinds and lengths, and more guesses than there are tokens"
    _,torchs,onnxs,_ = made('mlm', max_len=8, mlm_head=mlm_head)
    texts = ['a ___ film', '___', 'the ___ was ___ and ___', 'film '*40 + '___ warm', 'שלום ___ 🙂', 'xxpad ___ a']
    def same(a, b):
        assert [{k:v for k,v in o.items() if k != 'prob'} for o in a] == [{k:v for k,v in o.items() if k != 'prob'} for o in b]
        np.testing.assert_allclose([o['prob'] for o in a], [o['prob'] for o in b], atol=1e-5)
    for a,b in zip(onnxs.fill(texts), torchs.fill(texts), strict=True): same(a, b)
    same(onnxs.predict('a ___ film', n=2), torchs.predict('a ___ film', n=2))
    assert len(onnxs.fill('___', n=10**6)) == len(torchs.fill('___', n=10**6))
    with pytest.raises(ValueError, match='has no gap'): onnxs.fill('a film')
    with pytest.raises(ValueError, match='n=0'): onnxs.fill('___', n=0)

# Every scheme, pooling and way with long texts

@slow
@pytest.mark.parametrize('kw', [dict(positions=p) for p in POSITIONS] + [dict(pool=p) for p in [*POOLS,'max_logits']] + [dict(long=l) for l in LONG[1:]] +
                         [dict(mode='wide'), dict(mode='narrow'), dict(causal=True), dict(pooler=True, norm='rms', ff='swiglu', n_kv_heads=1), dict(config='modern', bigrams=50)], ids=str)
def test_configurations(kw, tmp_path):
    "Graphs of classifiers of all configurations"
    ready()
    import onnxruntime
    from fastai_txf.share.graphs import export_graphs
    torch.manual_seed(0)
    model = TransformerClassifier(vocab_sz=30, d_model=16, n_heads=2, max_len=7, n_out=3, **kw).eval()
    session = onnxruntime.InferenceSession(export_graphs(model)['model.onnx'])
    for n in (0, 1, 7, 8, 40):
        ids = [i % 20 + 5 for i in range(n)]
        with torch.no_grad(): want = model(torch.tensor([ids], dtype=torch.long)).numpy()
        close(session.run(None, lay_out([ids], 7, model.config.long))[0], want)

# The wide path

@pytest.mark.parametrize('words', [False,True])
def test_features(words):
    "The rows of the model's own hashes, for texts of all lengths"
    wide = pytest.importorskip('fastai_txf.model.wide').WidePath(1009, 2, 50, 1, words)
    wide.starts[torch.arange(0, 50, 3)] = False
    wide.known[7] = False
    inside = (~wide.starts).nonzero()[:,0].tolist()
    g = torch.Generator().manual_seed(0)
    for n in (0, 1, 2, 5, 40, 300):
        ids = torch.randint(2, 50, (n,), generator=g)
        rows,counts = wide.features(ids[None] if n else torch.ones(1, 1, dtype=torch.long))
        mine = feature_rows([ids.tolist()], 1009, words, inside, unknown=[7])[0]
        assert mine[mine >= 0].tolist() == rows[counts].tolist()

@slow
@pytest.mark.parametrize('by_length,y_range', [(False,None),(True,None),(True,(-0.5,0.5))])
def test_wide(by_length, y_range):
    "Several transformers and a wide path as one graph, with bounds and without"
    ready()
    pytest.importorskip('fastai_txf.model.wide')
    import onnxruntime
    from fastai_txf.share.graphs import export_graphs
    torch.manual_seed(0)
    model = TransformerClassifier(y_range=y_range, vocab_sz=30, d_model=16, n_heads=2, max_len=7, n_out=3, wide=101, wide_words=True, members=2).eval()
    for k,v in dict(table=torch.randn(101, 3), bias=torch.randn(3), shares=torch.tensor([0.7,0.4]), by_length=torch.tensor(by_length), starts=torch.arange(30) % 2 == 0).items():
        getattr(model.wide, k).copy_(v)
    session = onnxruntime.InferenceSession(export_graphs(model)['model.onnx'])
    inside = (~model.wide.starts).nonzero()[:,0].tolist()
    for n in (0, 1, 7, 8, 40):
        ids = [i % 20 + 5 for i in range(n)]
        with torch.no_grad(): want = model(torch.tensor([ids], dtype=torch.long)).numpy()
        close(session.run(None, {**lay_out([ids], 7), 'rows':feature_rows([ids], 101, True, inside)})[0], want)

# Files

hidden = 'torch','fastai','fastcore','pandas','spacy','safetensors','onnx'
without = f'''
    import sys
    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition('.')[0] in {hidden}: raise ImportError(f'{{name}} is hidden')
    sys.meta_path.insert(0, Missing())
    from fastai_txf.share.onnx import OnnxPredictor
'''

def test_without_torch(made):
    "A process that has numpy, onnxruntime and tokenizers alone"
    folders = [made('one', max_len=8), made('lm', max_len=12)]
    code = textwrap.dedent(without) + '\n'.join(f'print(repr(OnnxPredictor({str(at)!r}).predict({t!r})))' for (*_,at),t in zip(folders, ('WARM film', 'the film')))
    env = {**os.environ, 'PYTHONPATH':str(root)}
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=env)
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.splitlines() == [repr(p.predict(t)) for (_,_,p,_),t in zip(folders, ('WARM film', 'the film'))]

def copied(at, to):
    to.mkdir()
    for o in at.iterdir(): (to/o.name).write_bytes(o.read_bytes())
    return to

def test_no_trace_of_the_machine(made):
    "The graph holds no places in the source code"
    *_,at = made('one', max_len=8)
    data = (at/'model.onnx').read_bytes()
    assert str(root).encode() not in data and b'.py' not in data

def test_changed_files(made, tmp_path):
    "A byte flipped, a file missing, an edited configuration: refused, the file named"
    *_,at = made('one', max_len=8)
    for i,name in enumerate(['model.onnx','text.json','labels.json','README.md','config.json']):
        folder = copied(at, tmp_path/f'a{i}')
        data = bytearray((folder/name).read_bytes())
        data[len(data)//2] ^= 1
        (folder/name).write_bytes(data)
        with pytest.raises(ValueError, match=name.replace('.', r'\.')): OnnxPredictor(folder)
        folder = copied(at, tmp_path/f'b{i}')
        (folder/name).unlink()
        with pytest.raises(FileNotFoundError, match=name.replace('.', r'\.')): OnnxPredictor(folder)

@pytest.mark.parametrize('change', [dict(kind='../x'), dict(kind='seq2seq'), dict(kind=None)], ids=str)
def test_foreign_configurations(made, tmp_path, change):
    "A configuration that was sealed anew with other contents, or is of another format"
    *_,at = made('one', max_len=8)
    config,files = read_onnx(at)
    folder = copied(at, tmp_path/'c')
    for data in (seal({**{k:v for k,v in config.items() if k != 'checksum'}, **change}, files), b'{"format": 2}', b'[]', b'\xff', b'['*100_000):
        (folder/'config.json').write_bytes(data)
        with pytest.raises(ValueError, match='config.json'): OnnxPredictor(folder)

def resealed(at, to, files={}, **change):
    "A copy of a folder with other contents, and all hashes as they should be"
    config,old = read_onnx(at)
    files = {**old, **files}
    folder = copied(at, to)
    for k,data in files.items(): (folder/k).write_bytes(data)
    (folder/'config.json').write_bytes(seal({**{k:v for k,v in config.items() if k != 'checksum'}, **change}, files))
    return folder

@pytest.mark.parametrize('kind', ['lm','mlm'])
def test_another_kind(made, tmp_path, kind):
    "A classifier's folder that calls itself something else: its files have the same names"
    *_,at = made('one', max_len=8)
    labels = dict(special=[0,1], mask_idx=2)
    with pytest.raises(ValueError, match='model.onnx.*graph of another model'):
        OnnxPredictor(resealed(at, tmp_path/'c', {'labels.json':json.dumps(labels).encode()}, kind=kind))

@pytest.mark.parametrize('where,k,v', [('config','config',None), ('config','options',None), ('config','options',3), ('config','kind',['lm']), ('field','max_len',None), ('field','max_len',0), ('field','max_len','8'),
                                       ('field','pad_idx',None), ('field','long','x'), ('field','vocab_sz',None), ('field','n_out',2.5), ('field','d_model',None), ('option','ends',None), ('option','cached','x')])
def test_fields_that_do_not_fit(made, tmp_path, where, k, v):
    "With right hashes and a field missing or of another type: config.json and the field are named, before anything is asked"
    *_,at = made('lm', max_len=12)
    config = read_onnx(at)[0]
    old = dict(config=config, field=config['config'], option=config['options'])[where]
    new = {**{o:w for o,w in old.items() if o != k}, **({} if v is None else {k:v})}
    change = {k:v} if where == 'config' else {'config' if where == 'field' else 'options':new}
    with pytest.raises(ValueError, match=fr"config\.json cannot be read.*{k}"): OnnxPredictor(resealed(at, tmp_path/'c', **change))

def test_other_contents(made, tmp_path):
    "A graph of another vocabulary, a graph that is none, labels and text that do not fit: refused, the file named"
    *_,at = made('one', max_len=8)
    other = read_onnx(made('lm', max_len=12)[-1])[1]
    config = read_onnx(at)[0]['config']
    for i,(name,change) in enumerate([
            ('model.onnx', dict(files={'model.onnx':other['model.onnx']})), ('model.onnx', dict(files={'model.onnx':b'no graph'})),
            ('labels.json', dict(files={'labels.json':b'{"kind": "category", "names": ["a"]}'})), ('labels.json', dict(files={'labels.json':b'{}'})),
            ('text.json', dict(files={'text.json':other['text.json']})), ('text.json', dict(files={'text.json':b'[]'})),
            ('labels.json', dict(config={**config, 'n_out':3}))]):
        with pytest.raises(ValueError, match=name.replace('.', r'\.')): OnnxPredictor(resealed(at, tmp_path/f'{i}', **change))
    assert OnnxPredictor(resealed(at, tmp_path/'same')).predict('a film') in ('neg','pos')

def test_batches_of_none(made):
    _,torchs,onnxs,_ = made('one', max_len=8)
    for p in (torchs,onnxs):
        with pytest.raises(ValueError, match='1 or more'): p.predict(['a','b'], bs=0)

def test_bundle_is_none(made, tmp_path):
    "A published model, one in ONNX and an empty folder are named as what they are, with what reads them"
    learn,*_ = made('one', max_len=8)
    folder = learn.publish(tmp_path/'p', trained=True)
    with pytest.raises(ValueError, match=fr"a published model.*read it with load_published\('{folder}'\)"): OnnxPredictor(folder)
    (tmp_path/'empty').mkdir()
    with pytest.raises(FileNotFoundError, match='config.json'): OnnxPredictor(tmp_path/'empty')
    *_,at = made('one', max_len=8)
    with pytest.raises(ValueError, match=fr"in ONNX.*read it with OnnxPredictor\('{at}'\)$"): load_published(at)

def test_refused(made, tmp_path, monkeypatch):
    "A folder that is there, a missing package, a model that answers otherwise: nothing is written"
    ready()
    learn,*_,at = made('one', max_len=8)
    with pytest.raises(FileExistsError, match=at.name): to_onnx(learn, at)
    with monkeypatch.context() as m:
        m.setitem(sys.modules, 'onnxscript', None)
        with pytest.raises(ImportError, match='pip install onnx onnxscript'): to_onnx(learn, tmp_path/'x', trained=True)
    with monkeypatch.context() as m:
        m.setattr('fastai_txf.share.to_onnx.export_graphs', lambda model: {k:(at/k).read_bytes() for k in GRAPH_FILES['classifier']})
        other = stirred(tasks['one'](max_len=8))
        with torch.no_grad(): other.model.head.bias += 1
        with pytest.raises(ValueError, match='answers otherwise'): to_onnx(other, tmp_path/'x', trained=True)
        m.setattr('fastai_txf.share.folder.os.fsync', lambda fd: (_ for _ in ()).throw(OSError(28, 'No space left on device')))
        with pytest.raises(OSError, match='No space'): to_onnx(learn, tmp_path/'x', trained=True)
    assert not [*tmp_path.iterdir()]

def test_edited_card(made, tmp_path):
    "A card that was edited is no obstacle, and goes along"
    learn,*_ = made('one', max_len=8)
    folder = learn.publish(tmp_path/'m', trained=True)
    (folder/'README.md').write_text('my own card')
    at = to_onnx(folder, tmp_path/'o')
    assert OnnxPredictor(at).predict('warm') == learn.predict('warm')[0] and (at/'README.md').read_text() == 'my own card'

def test_windows_of_lists():
    "Cutting lists is cutting tensors"
    for n in range(60):
        ws = cut_windows([*range(n)], 7)
        assert [i for w in ws for i in w] == [*range(n)] and len(ws) == max(1, -(-n//7)) and max(map(len, ws)) <= 7

# Weights of eight bits

def test_int8_linear():
    "A map with one scale a row, of three and of two dimensions, with and without bias"
    for bias in (True, False):
        linear = nn.Linear(96, 130, bias=bias)
        with torch.no_grad(): linear.weight[0] *= 1000          # a large row costs the others nothing
        own = Int8Linear(linear)
        for x in (torch.randn(3, 96), torch.randn(2, 5, 96), torch.randn(1, 1, 96)):
            with torch.no_grad(): want = linear(x)
            off = (own(x) - want)[...,1:].norm()/want[...,1:].norm()
            assert own(x).shape == want.shape and off < 0.02
    assert 'in_features=96' in repr(own)

def test_int8_gradients():
    "What a map reads counts for as much as before: torch's map of eight bits gives no gradient, and does not say so"
    torch.manual_seed(0)
    linear,x = nn.Linear(96, 130), torch.randn(2, 5, 96, requires_grad=True)
    (a,),(b,) = [torch.autograd.grad(m(x).square().sum(), x) for m in (linear, Int8Linear(linear))]
    assert (a-b).norm()/a.norm() < 0.03

@pytest.mark.parametrize('cls', [TransformerLM,TransformerMLM,TransformerClassifier,Seq2SeqTransformer])
def test_int8_models(cls):
    "Every model answers nearly the same, and is itself as it was"
    torch.manual_seed(0)
    model = cls(vocab_sz=300, d_model=96, n_heads=4, n_layers=2, n_out=90).eval()
    xs = (torch.randint(2, 300, (2,9)),)*(2 if cls is Seq2SeqTransformer else 1)
    before = {k:v.clone() for k,v in model.state_dict().items()}
    small = to_int8(model)
    with torch.no_grad(): a,b = model(*xs), small(*xs)
    assert not torch.equal(a, b) and (a-b).norm()/a.norm() < 0.1
    assert isinstance(small.head, Int8Linear) and is_linear(model.head)
    assert all(v.equal(before[k]) for k,v in model.state_dict().items())

@pytest.mark.parametrize('cls', [TransformerLM,TransformerMLM,TransformerClassifier,Seq2SeqTransformer])
def test_int8_is_a_copy(cls):
    "A model that is trained on leaves its eight-bit copy as it was; what is tied is one thing in the copy, too"
    torch.manual_seed(0)
    model = cls(vocab_sz=300, d_model=48, n_heads=4, n_layers=2, n_out=90, positions='learned', max_len=9).eval()
    model.also = model.encoder.emb.weight
    xs = (torch.randint(2, 300, (2,9)),)*(2 if cls is Seq2SeqTransformer else 1)
    small = to_int8(model)
    with torch.no_grad():
        before = small(*xs)
        for t in [*model.parameters(), *model.buffers()]: t.zero_()
        assert small(*xs).equal(before)
    assert small.also is small.encoder.emb.weight

@pytest.mark.parametrize('change', [lambda m: m.register_forward_hook(lambda m, x, out: out*0), lambda m: m.register_forward_pre_hook(lambda m, x: (x[0]*0,)),
    lambda m: setattr(m, 'forward', lambda x, f=m.forward: f(x)*0)])
def test_int8_keeps_what_is_put_on_a_map(change):
    "A hook or an own `forward` is heard: that map stays as it is, the others have eight bits"
    torch.manual_seed(0)
    model,x = torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.Linear(96, 96, bias=False)).eval(), torch.randn(2, 96)
    change(model[1])
    small = to_int8(model)
    assert not model(x).any() and not small(x).any()
    assert [type(m) for m in small] == [Int8Linear,torch.nn.Linear]

def test_int8_refused():
    "Half precision has nothing to gain from it"
    with pytest.raises(ValueError, match='bfloat16.*fp32'): to_int8(TransformerLM(vocab_sz=30, d_model=16, n_heads=2).bfloat16())

def test_int8_published(tmp_path):
    "A published model with weights of eight bits predicts, streams and refuses other names"
    learn = stirred(tasks['lm'](d_model=96))
    folder = learn.publish(tmp_path/'lm', trained=True)
    with pytest.raises(ValueError, match='int4'): load_published(folder, dtype='int4')
    small = load_published(folder, dtype='int8')
    assert any(isinstance(m, Int8Linear) for m in small.model.modules())
    text = small.predict('the film', n_tokens=12, temperature=0)
    assert text == 'the film' + ''.join(small.stream('the film', n_tokens=12, temperature=0))
    clf = stirred(tasks['one'](d_model=96))
    folder = clf.publish(tmp_path/'one', trained=True)
    texts = odd_texts(40, long=50)
    a,b = (load_published(folder, dtype=d).probs(texts) for d in (None,'int8'))
    assert (a-b).abs().max() < 0.1
