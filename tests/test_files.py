"A file is whole or it is not there: full disks, kills, folders that may not be written, bytes that have changed"
import copy, gzip, os, pickle, random, resource, signal, subprocess, sys, tempfile, textwrap, time, warnings, zipfile
from pathlib import Path
from urllib.error import HTTPError
import numpy as np, pytest, torch
from hypothesis import HealthCheck, given, settings, strategies as st
from fastai.text.all import BaseTokenizer, Callback, load_learner
from fastai_txf.all import LMDataLoaders, ResumeCallback, flat_ids, read_ids, transformer_classifier_learner
from fastai_txf.base import ids as ids_room
from fastai_txf.base.files import load_tensors, replacing, save_tensors
from fastai_txf.text.folders import FolderTokenizer
from torch.utils._pytree import tree_leaves
from fixtures import SMALL, df, dls, dls_lm, make, quiet

def left(folder): return sorted(o.name for o in Path(folder).iterdir())

def in_process(code, **kw):
    "Run `code` in a process of its own, with this one's path"
    env = {**os.environ, 'PYTHONPATH':os.pathsep.join(sys.path), 'OMP_NUM_THREADS':'1'}
    return subprocess.Popen([sys.executable, '-c', textwrap.dedent(code)], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)

_writers = '''
    import numpy as np, resource, signal, sys, torch
    from pathlib import Path
    from fastai_txf.base.files import replacing, save_tensors
    from fastai_txf.base.ids import flat_ids
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    def tensors(n): save_tensors(dict(w=torch.full((n,), float(n))), file)
    def raw(n):
        with replacing(file) as f: f.write(bytes([n % 251])*4*n)
    def ids(n): flat_ids([[n]*1000]*(n//1000), file, max_ram=1000)
    write = dict(tensors=tensors, raw=raw, ids=ids)[KIND]
    '''
each_writer = pytest.mark.parametrize('kind', ['tensors','raw','ids'])

def writer(kind, rest, file, **kw):
    return in_process(f"import sys; sys.argv = ['', {str(file)!r}]\nKIND = {kind!r}\n"
                      + textwrap.dedent(_writers) + textwrap.dedent(rest), **kw)

@each_writer
def test_full_disk(kind, tmp_path):
    "A file that may not grow: the old one is whole, no half one lies beside it, the error names it"
    file = tmp_path/'kept.bin'
    rest = '''
        write(20_000)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        old = file.read_bytes()
        try: write(60_000)
        except (OSError, RuntimeError) as e: print(type(e).__name__, e)
        else: print('no error')
        assert file.read_bytes() == old
        '''
    p = writer(kind, rest, file)
    out,err = p.communicate(timeout=120)
    assert p.returncode == 0, err
    assert 'kept.bin' in out and 'no error' not in out, out
    assert left(tmp_path) == ['kept.bin']

@each_writer
def test_killed(kind, tmp_path):
    "SIGKILL at random moments of writing: what is there under the name is a whole file"
    file,rng = tmp_path/'kept.bin', random.Random(0)
    for _ in range(3):
        p = writer(kind, "print('ready', flush=True)\nwhile True:\n    for n in (20_000, 50_000, 90_000): write(n)", file)
        assert p.stdout.readline() == 'ready\n', p.stderr.read()
        while not file.exists(): time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        p.send_signal(signal.SIGKILL)
        p.communicate()
        if kind == 'tensors':
            w = load_tensors(file, 'weights', 'write them again')['w']
            assert (w == len(w)).all() and len(w) in (20_000, 50_000, 90_000)
        else:
            data = read_ids(file, whole=True).ids if kind == 'ids' else np.fromfile(file, np.uint8)
            n = len(data) if kind == 'ids' else len(data)//4
            assert n in (20_000, 50_000, 90_000) and (data == (n if kind == 'ids' else n % 251)).all()

def test_missing_folder_and_directory(tmp_path):
    "A folder is made; a folder in the file's place is an error that names it"
    save_tensors(dict(w=1), tmp_path/'a'/'b'/'w.pth')
    assert load_tensors(tmp_path/'a'/'b'/'w.pth', 'weights', 'again') == dict(w=1)
    (tmp_path/'d.pth').mkdir()
    with pytest.raises(OSError, match='d.pth'): save_tensors(dict(w=1), tmp_path/'d.pth')
    assert left(tmp_path) == ['a','d.pth']

_real_writers = """
    import os, sys, warnings, resource, signal
    from pathlib import Path
    from fastai.text.all import BaseTokenizer, Callback, noop
    from fastai_txf.all import *
    from fastai_txf.text.folders import FolderTokenizer
    from fastai_txf.workshop import write_exercises
    from fixtures import SMALL, make_dls, quiet, texts_df
    path = Path(sys.argv[1])
    learn = quiet(transformer_classifier_learner(make_dls(texts_df()), **{**SMALL, 'd_model':64}, path=path))
    class Stop(Callback):
        def before_batch(self):
            if self.training and self.iter == 2: raise KeyboardInterrupt
    def encoder(): return learn.save_encoder('enc')
    def exported(): return learn.save_encoder(path/'models'/'other.pth')
    def saved(): return learn.save('best/one')
    def resume():
        try: learn.fit(1, 1e-3, cbs=[ResumeCallback(every=1), Stop()])
        except KeyboardInterrupt: pass
        learn.remove_cbs(learn.cbs.filter(lambda cb: isinstance(cb, (ResumeCallback,Stop))))
        return path/'models'/'resume.pth'
    def tokens():
        (path/'texts'/'new.txt').write_text('a new text '*2000)
        FolderTokenizer(path/'texts', BaseTokenizer)
        return path/'texts_tok'/'tokens.pth'
    def ids(): flat_ids([[7]*1000]*60, path/'models'/'train.ids', max_ram=1000); return path/'models'/'train.ids'
    writers = [encoder, exported, resume, tokens, ids, saved]
    """

def real_writers(rest, path):
    "What the library's own writers do: the first time as ever, the second time after `rest`"
    (path/'texts').mkdir()
    (path/'texts'/'a.txt').write_text('a text')
    code = _real_writers + """
    files = [w() for w in writers]
    (path/'texts'/'new.txt').unlink()
    old = {f:f.read_bytes() for f in files}
    there = lambda: sorted(str(o.relative_to(path)) for o in path.rglob('*') if not o.is_dir())
    before = there()
    """ + rest + """
    for w,f in zip(writers, files):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always', UserWarning)
            try: w()
            except OSError as e: said.append(e)
        said = [str(getattr(o, 'message', o)) for o in said]
        assert any(f.name in o for o in said), (f, said)
        assert f.read_bytes() == old[f], f
        print('said:', f.name, said)
    assert there() == before, (before, there())
    """
    tests = Path(__file__).parent
    p = in_process(f"import sys; sys.argv = ['', {str(path)!r}]; sys.path.insert(0, {str(tests)!r})\n" + textwrap.dedent(code))
    out,err = p.communicate(timeout=300)
    assert p.returncode == 0, err[-2000:]
    assert out.count('said:') == 6, out

def test_full_disk_of_every_writer(tmp_path):
    "Encoders, states of a training, kept tokens, ids: the old file whole, the error or the warning names it"
    real_writers("""
    (path/'texts'/'new.txt').write_text('a new text '*2000)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    tokens = lambda: FolderTokenizer(path/'texts', BaseTokenizer)
    writers[3] = tokens
    before = there()
    """, tmp_path)

def test_read_only_folder_of_every_writer():
    "As nobody, who may read the folders and not write into them"
    with tempfile.TemporaryDirectory() as d:
        path = Path(d)
        path.chmod(0o755)
        real_writers("""
    (path/'texts'/'new.txt').write_text('a new text '*2000)
    for o in [path, *path.rglob('*')]: o.chmod(0o555 if o.is_dir() else 0o444)
    if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)
    writers[3] = lambda: FolderTokenizer(path/'texts', BaseTokenizer)
    before = there()
    """, path)
        for o in [path, *path.rglob('*')]: o.chmod(0o755)

def test_permissions(tmp_path):
    "A new file has those that the process gives, an old one keeps its own"
    mask = os.umask(0o022)
    try: save_tensors(dict(w=1), tmp_path/'w.pth')
    finally: os.umask(mask)
    assert (tmp_path/'w.pth').stat().st_mode & 0o777 == 0o644
    (tmp_path/'w.pth').chmod(0o600)
    save_tensors(dict(w=2), tmp_path/'w.pth')
    assert (tmp_path/'w.pth').stat().st_mode & 0o777 == 0o600

def test_encoder_on_a_full_disk(make, tmp_path, monkeypatch):
    "`save_encoder` leaves the old file whole"
    learn = make()
    file = learn.save_encoder('enc')
    old = file.read_bytes()
    def full(o, f, *args, **kw):
        f.write(b'half')
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(torch, 'save', full)
    with pytest.raises(OSError, match='enc.pth'): learn.save_encoder('enc')
    assert file.read_bytes() == old and left(file.parent) == ['enc.pth']

def test_mapped_ids_stay(tmp_path):
    "Ids that are mapped are read on while their file is written anew"
    file = tmp_path/'train.ids'
    ids = flat_ids([[7]*5000]*2, file, max_ram=1000).ids
    assert isinstance(ids, np.memmap)
    flat_ids([[9]*100]*20, file, max_ram=1000)
    assert (ids == 7).all() and len(ids) == 10_000

# Every reader: (the file, what is read from it, whether a changed file is made anew in place of an error)

def encoder_reader(path, dls):
    learn,other = [quiet(transformer_classifier_learner(dls, **SMALL, path=path)) for _ in range(2)]
    file = learn.save_encoder('enc')
    def read():
        other.load_encoder(file)
        return list(other.model.encoder.state_dict().values())
    return file, read

class Stop(Callback):
    "Breaks a fit off"
    def before_batch(self):
        if self.training and self.iter == 2: raise KeyboardInterrupt

def resume_reader(path, dls):
    learn = quiet(transformer_classifier_learner(dls, **SMALL, path=path))
    with pytest.raises(KeyboardInterrupt): learn.fit(1, 1e-3, cbs=[ResumeCallback(every=1), Stop()])
    file,cb = path/'models'/'resume.pth', ResumeCallback()
    cb._path,cb._run = file, torch.load(file, weights_only=True)['run']
    def read(): return tree_leaves(cb._read())
    return file, read

def ids_reader(path, dls):
    file = path/'train.ids'
    flat_ids([[i]*(i%7) for i in range(3000)], file, max_ram=100)
    def read(): return [torch.tensor(o) for o in read_ids(file)]
    return file, read

def loader_reader(path, dls):
    "The same file, as loaders open it"
    file,vocab = ids_reader(path, dls)[0], ['xxunk','xxpad',*map(str, range(2998))]
    def read(): return [torch.tensor(LMDataLoaders.from_ids(file, [], vocab, BaseTokenizer(), bs=2).train_ds.flat.ids)]
    return file, read

def tokens_reader(path, dls):
    (path/'texts').mkdir()
    for i in range(20): (path/'texts'/f'{i}.txt').write_text(f'text number {i} '*(1+i))
    def read():
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return [FolderTokenizer(path/'texts', BaseTokenizer).kept]
    read()
    return path/'texts_tok'/'tokens.pth', read

FILES = dict(encoder=encoder_reader, resume=resume_reader, ids=ids_reader, loaders=loader_reader, tokens=tokens_reader)

@pytest.fixture(scope='module', params=FILES)
def reader(request, tmp_path_factory, dls):
    file,read = FILES[request.param](tmp_path_factory.mktemp(request.param), dls)
    return file, file.read_bytes(), read, list(read()), request.param == 'tokens'

def same(a, b):
    return len(a) == len(b) and all(o.equal(p) if isinstance(o, torch.Tensor) else o == p for o,p in zip(a, b))

def refused_or_same(reader, data):
    "What is read from `data` under the file's name"
    file,_,read,want,anew = reader
    file.write_bytes(data)
    try: got = read()
    except ValueError as e: assert file.name in str(e) and not anew, e
    else: assert same(got, want)

@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_flipped_bytes_of_every_reader(reader, data):
    "Refused by name, or what changed was no part of it; kept tokens are made anew"
    whole = reader[1]
    n = data.draw(st.integers(1, min(200, len(whole))))
    places = data.draw(st.lists(st.integers(0, len(whole)-1), min_size=n, max_size=n, unique=True))
    changed = bytearray(whole)
    for i in places: changed[i] ^= data.draw(st.integers(1, 255))
    refused_or_same(reader, bytes(changed))

@pytest.mark.parametrize('cut', [0, 1, 127, 128, 0.3, 0.5, 0.99, -1, -8, -20, -21])
def test_truncated_files_of_every_reader(reader, cut):
    file,whole,read,want,anew = reader
    file.write_bytes(whole[:int(len(whole)*cut) if 0 < cut < 1 else cut])
    if anew: assert same(read(), want)
    else:
        with pytest.raises(ValueError, match=file.name): read()

def test_no_map_when_ids_get_their_name(tmp_path, monkeypatch):
    "A file that is mapped cannot be renamed on Windows; the ids are mapped by the name of the file afterwards"
    replace = os.replace
    def strict(a, b):
        assert str(a) not in Path('/proc/self/maps').read_text()
        return replace(a, b)
    monkeypatch.setattr(os, 'replace', strict)
    def plus(ids): ids += 1
    for change,want in ((None,[5,6,7,8]), (plus,[6,7,8,9])):
        got = flat_ids([[5,6],[],[7,8]], tmp_path/'a.ids', max_ram=1, change=change)
        assert got.ids.tolist() == read_ids(tmp_path/'a.ids').ids.tolist() == want and got.ends.tolist() == [2,2,4]
        assert str(tmp_path/'a.ids') == str(got.ids.filename)

def test_no_space_for_temporary_ids(monkeypatch):
    "The error names the place that is full, and the option for another"
    monkeypatch.setattr(ids_room.tempfile, 'TemporaryFile', lambda: open('/dev/full', 'r+b'))
    with pytest.raises(OSError, match=f'no space is left .*{tempfile.gettempdir()}.*folder= of the loaders'): flat_ids([[5,6]], max_ram=1)

@pytest.mark.parametrize('error', [FileNotFoundError(2, 'No such file or directory', 'texts.txt'), HTTPError('http://a', 404, 'Not Found', {}, None), gzip.BadGzipFile('Not a gzipped file'),
    PermissionError(13, 'Permission denied', 'texts.txt'), OSError(28, 'No space left on device'), OSError(5, 'Input/output error')])
def test_an_error_of_the_texts_is_none_of_the_file(tmp_path, error):
    "What a source of texts raises comes through as it is; the file is as it was"
    def texts():
        yield [1,2,3]
        raise error
    for file in (tmp_path/'a.ids', None):
        with pytest.raises(type(error)) as e: flat_ids(texts(), file=file, max_ram=2)
        assert e.value is error and left(tmp_path) == []

class Bomb:
    "Pickled by others, to run code where it is read"
    def __reduce__(self): return os.system, ('touch exploded',)

def _npy(f): np.save(f, np.arange(1000, dtype=np.int32))
FOREIGN = dict(text=lambda f: f.write(b'no archive at all'), npy=_npy, bomb=lambda f: torch.save(Bomb(), f),
               plain=lambda f: f.write(np.arange(9999, dtype=np.int32).tobytes()), list=lambda f: torch.save([1,2], f),
               dict=lambda f: torch.save(dict(config={}, made_by=3, texts=4), f), zip=lambda f: zipfile.ZipFile(f, 'w').writestr('a', 'b'),
               bytes=lambda f: f.write(random.Random(0).randbytes(5000)))

@pytest.mark.parametrize('foreign', FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_of_every_reader(reader, foreign, monkeypatch):
    "Refused by name, and nothing of it is run"
    file,_,read,want,anew = reader
    monkeypatch.chdir(file.parent)
    with open(file, 'wb') as f: foreign(f)
    if anew: assert same(read(), want)
    else:
        with pytest.raises(ValueError, match=file.name): read()
    assert not (file.parent/'exploded').exists()

def test_missing_files_of_every_reader(reader):
    file,whole,read,want,anew = reader
    file.unlink()
    if anew: assert same(read(), want)
    elif file.name != 'resume.pth':
        with pytest.raises(FileNotFoundError, match=file.name): read()
    file.write_bytes(whole)

@pytest.fixture
def large_ids(tmp_path, monkeypatch):
    "A file of ten blocks, of which three would be a small file, and a function that changes one id of it, or none"
    monkeypatch.setattr(ids_room, '_block', 10)
    monkeypatch.setattr(ids_room, '_most', 3)
    file = tmp_path/'train.ids'
    flat_ids([[2+i%5]*10 for i in range(10)], file, max_ram=10)
    whole = file.read_bytes()
    def flip(i):
        data = bytearray(whole)
        if i is not None: data[128+4*i] ^= 1
        file.write_bytes(data)
        return file
    return flip

@pytest.mark.parametrize('i', [0,25,47,99])
def test_blocks_of_ids(large_ids, i):
    "A large file opens at once; of its ids those of a changed block are never read, each way one can read them"
    file,ids = large_ids(i), np.arange(10).repeat(10)%5 + 2
    changed = f'train.ids.*the ids {i//10*10} to {i//10*10+9} have changed.*write them again'
    flat = read_ids(file)
    assert len(flat.ids) == 100 and flat.ids.shape == (100,) and flat.ids.dtype == np.int32
    for a,b in [(0,100),(i,i+1),(i-3,i+8),(max(i-60,0),100)]:
        with pytest.raises(ValueError, match=changed): flat.ids[max(a,0):b]
    ways = [lambda o: o[i], lambda o: o[i-100], lambda o: o[::-1], lambda o: o[[3,i]], lambda o: o[o == 3], np.asarray,
            lambda o: np.array(o, dtype=np.int64), list, lambda o: o.tolist(), lambda o: o+1, lambda o: o.max(),
            np.sum, lambda o: np.concatenate([o,o]), pickle.dumps, copy.deepcopy, lambda o: i in o, lambda o: o.astype(int)]
    for way in ways:
        with pytest.raises(ValueError, match=changed): way(read_ids(file).ids)
    with pytest.raises(ValueError): torch.tensor(read_ids(file).ids)                    # in torch's words
    with pytest.raises(ValueError, match=changed): read_ids(file, whole=True)
    for k in set(range(10)) - {i//10}:
        assert flat.ids[10*k:10*k+10].tolist() == ids[10*k:10*k+10].tolist() and flat.ids[10*k+3] == ids[10*k]

def test_loaders_of_large_ids(large_ids):
    "Batches that read a changed block end by name, in order and at random; of a sound file they are those of the array"
    kw,vocab = dict(tok_tfm=BaseTokenizer(), bs=2, seq_len=8), ['xxunk','xxpad',*'abcdefgh']
    file = large_ids(57)
    for windows in ('continuous','random'):
        dls = LMDataLoaders.from_ids(file, [2]*20, vocab, windows=windows, **kw)
        with pytest.raises(ValueError, match='train.ids.*the ids 50 to 59 have changed'): list(dls.train)
    file,ids = large_ids(None), np.arange(10).repeat(10)%5 + 2
    of_file,of_array = [[*LMDataLoaders.from_ids(ids, o, vocab, **kw).valid] for o in (file,ids)]
    assert len(of_file) == len(of_array) > 1
    for a,b in zip(of_file, of_array): assert a[0].equal(b[0]) and a[1].equal(b[1])

def test_sound_blocks_are_checked_once(large_ids, monkeypatch):
    "And used as an array, also by numpy"
    ids,want = read_ids(large_ids(None)).ids, np.arange(10).repeat(10)%5 + 2
    done,check = [], ids_room._sum
    monkeypatch.setattr(ids_room, '_sum', lambda ids, i, block: done.append(int(i)) or check(ids, i, block))
    for _ in range(2): ids[35:62], ids[61], ids[40:40]
    assert done == [3,4,5,6]
    for way in (np.asarray, list, np.sum, lambda o: o+1, lambda o: 1+o, lambda o: o == 3, lambda o: o[[3,9]], np.max, np.bincount,
                lambda o: pickle.loads(pickle.dumps(o)), copy.deepcopy, torch.tensor, lambda o: torch.from_numpy(np.asarray(o))):
        assert np.array_equal(np.asarray(way(ids)), np.asarray(way(want)))
    assert sorted(done) == list(range(10))
    with pytest.raises(IndexError): ids[100]
    with pytest.raises((ValueError,TypeError)): ids[3] = 1

def test_ids_are_opened_without_reading_them(tmp_path, monkeypatch):
    "The bounds that loaders check stand in the file"
    file = tmp_path/'train.ids'
    flat_ids([[2,9,4]*100], file, max_ram=10)
    kw,vocab = dict(tok_tfm=BaseTokenizer(), bs=2, seq_len=8), ['xxunk','xxpad',*'abcdefgh']
    dls = LMDataLoaders.from_ids(file, str(file), vocab, **kw)
    assert isinstance(dls.train_ds.flat.ids, np.memmap) and dls.valid_ds.flat.ids.tolist() == [2,9,4]*100
    with pytest.raises(ValueError, match='ids from 2 to 9 do not fit a vocabulary of 9 tokens'): LMDataLoaders.from_ids(file, [], vocab[:9], **kw)
    assert np.load(file, mmap_mode='r').tolist() == [2,9,4]*100

def test_empty_ids(tmp_path):
    "Texts without a token, beside those that spill"
    file = tmp_path/'train.ids'
    for lists in ([[1,2,3],[],[],[4]], [[],[5]*9]):
        want = flat_ids(lists, file, max_ram=2)
        assert [o.tolist() for o in read_ids(file)] == [o.tolist() for o in want]

# What of the encoder's file is refused

@pytest.fixture(scope='module')
def encoder(tmp_path_factory, dls):
    "The bytes of an encoder's file, a learner to load it, and what that answers"
    path = tmp_path_factory.mktemp('enc')
    learn = quiet(transformer_classifier_learner(dls, **SMALL, path=path))
    file = learn.save_encoder('enc')
    other = quiet(transformer_classifier_learner(dls, **SMALL, path=path))
    want = {k:v.clone() for k,v in learn.model.encoder.state_dict().items()}
    return file.read_bytes(), other, want, path

@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_flipped_bytes(encoder, data):
    "A changed encoder is refused by name, or what changed was no part of it: never another model"
    whole,learn,want,path = encoder
    n = data.draw(st.integers(1, 200))
    places = data.draw(st.lists(st.integers(0, len(whole)-1), min_size=n, max_size=n, unique=True))
    changed = bytearray(whole)
    for i in places: changed[i] ^= data.draw(st.integers(1, 255))
    file = path/'flipped.pth'
    file.write_bytes(changed)
    try: learn.load_encoder(file)
    except ValueError as e: assert 'flipped.pth' in str(e), e
    else:
        got = learn.model.encoder.state_dict()
        assert all(v.equal(want[k]) for k,v in got.items())

@pytest.mark.parametrize('cut', [0, 1, 100, 0.5, 0.99])
def test_truncated(encoder, cut):
    whole,learn,_,path = encoder
    file = path/'short.pth'
    file.write_bytes(whole[:int(len(whole)*cut) if cut < 1 and cut else int(cut)])
    with pytest.raises(ValueError, match='short.pth'): learn.load_encoder(file)

@pytest.mark.parametrize('what', [lambda: [1,2], lambda: dict(config={}), lambda: Bomb(), lambda: torch.nn.Linear(2, 2)])
def test_foreign_files(encoder, what, monkeypatch):
    "Something else that torch has saved: refused by name, and nothing of it is run"
    _,learn,_,path = encoder
    monkeypatch.chdir(path)
    torch.save(what(), path/'foreign.pth')
    with pytest.raises(ValueError, match='foreign.pth'): learn.load_encoder(path/'foreign.pth')
    assert not (path/'exploded').exists()
    (path/'text.pth').write_text('no archive at all')
    with pytest.raises(ValueError, match='text.pth'): learn.load_encoder(path/'text.pth')

def test_weights_that_were_cut_off(dls, tmp_path):
    "`load` names a file that lost its end, or is another's, or another model's"
    learn = quiet(transformer_classifier_learner(dls, path=tmp_path, **SMALL))
    file = learn.save('w')
    whole = file.read_bytes()
    for data in (b'', whole[:100], whole[:len(whole)//2], whole[:-1], b'a text '*50):
        file.write_bytes(data)
        with pytest.raises(ValueError, match='w.pth cannot be read .*copy it again'): learn.load('w')
    file.write_bytes(whole)
    learn.load('w')
    with pytest.raises(FileNotFoundError, match='none.pth'): learn.load('none')
    with pytest.raises(TypeError, match='device=True is no device: name it, with_opt=True'): learn.load('w', True)
    with pytest.raises(ValueError, match=r'w.pth .* d_model=16 \(here 8\)'): transformer_classifier_learner(dls, path=tmp_path, **{**SMALL, 'd_model':8}).load('w')
    torch.save(learn.model.state_dict(), file)
    with pytest.raises(ValueError, match='w.pth does not fit this model: make the learner by the same call.*size mismatch'):
        transformer_classifier_learner(dls, path=tmp_path, **{**SMALL, 'd_model':8}).load('w')
    torch.save({f'old.{k}':w for k,w in learn.model.state_dict().items()}, file) # as another version may have called them
    with pytest.raises(ValueError, match='w.pth does not fit .*another version of fastai_txf wrote with that one .*Missing key'): learn.load('w')

def _broken_off(o, f, **kwargs):
    "In place of `torch.save`: Ctrl-C in the middle"
    f.write(b'half')
    raise KeyboardInterrupt

def test_export_that_fails(dls, tmp_path, monkeypatch):
    "The old file stays whole, and the learner has its data and its optimizer; a folder that is not there is made"
    learn = quiet(transformer_classifier_learner(dls, path=tmp_path, **SMALL))
    learn.fit(1)
    opt,moments = learn.opt, learn.opt.state_dict()
    learn.export('new/folder/l.pkl')
    file = tmp_path/'new'/'folder'/'l.pkl'
    whole = file.read_bytes()
    with monkeypatch.context() as m:
        m.setattr(torch, 'save', _broken_off)
        with pytest.raises(KeyboardInterrupt): learn.export(file)
    (tmp_path/'taken').write_text('')
    with pytest.raises(OSError, match='taken'): learn.export('taken/l.pkl')
    assert file.read_bytes() == whole and [*file.parent.iterdir()] == [file]
    assert learn.dls is dls and learn.opt is opt and str(opt.state_dict()) == str(moments)
    learn.fit(1)
    assert load_learner(file).predict('a warm film')[0] in dls.vocab[1]
